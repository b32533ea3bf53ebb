"""Refuses settings that can be read but cannot work; each text begins with the key's path."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.model.devices import OwnSettings
from holdfast.model.gate.cdi import is_kind
from holdfast.model.gate.gate import LONGEST_WAIT
from holdfast.model.ids import ResourceName
from holdfast.model.tpu.generations import GENERATIONS
from holdfast.names import (
    CONTROL_SOCKET,
    DRA_SOCKET,
    KUBELET_SOCKET,
    LONGEST_SOCKET_PATH,
    PLUGIN_SOCKET_BYTES,
    PLUGINS,
    PLUGINS_REGISTRY,
)
from holdfast.settings.hardware import SHARED, DeviceSettings
from holdfast.settings.sections import Settings
from holdfast.settings.types import NOT_KUBELETS, plain

_LONGEST_ALLOCATE = 10.0  # seconds: kubelet has no limit of its own, and admits no other pod


def problems(settings: Settings) -> Iterator[str]:
    """Yield each reason why a daemon with *settings* could not do its job."""
    yield from _paths(settings)
    yield from _resources(settings)
    yield from _devices(settings)
    yield from _tpu(settings)
    yield from _sharing(settings)
    yield from _times(settings)
    if settings.has_dra():
        yield from _dra(settings)


def _paths(settings: Settings) -> Iterator[str]:
    kubelet = settings.kubelet
    plugin_dir, state_dir = _path(kubelet.plugin_dir), _path(settings.state_dir)
    if plugin_dir == state_dir or plugin_dir in state_dir.parents:
        yield "stateDir: kubelet may clean its plugin folder; choose a folder outside of it"
    if len(bytes(state_dir / CONTROL_SOCKET)) > LONGEST_SOCKET_PATH:
        yield "stateDir: the path is too long for a Unix socket in it; choose a shorter one"
    prefix = kubelet.socket_prefix
    # The daemon removes old sockets with this prefix.
    if KUBELET_SOCKET.startswith(prefix):
        yield (
            f"kubelet.socketPrefix: {prefix!r} begins the name of kubelet's own socket too, which "
            "the daemon would remove; choose another"
        )
    elif len(bytes(plugin_dir / prefix)) + PLUGIN_SOCKET_BYTES > LONGEST_SOCKET_PATH:
        yield (
            f"kubelet.socketPrefix: no socket in {plugin_dir} can have a name that begins with "
            f"{prefix!r}: its path would be longer than {LONGEST_SOCKET_PATH} bytes; choose a "
            "shorter one"
        )


def _path(text: str) -> Path:
    """Return *text* as Linux reads it: to Python, and not to it, two slashes begin another root."""
    return Path("/", text.lstrip("/"))


def _resources(settings: Settings) -> Iterator[str]:
    sections = {
        f"{key}.resourceName": section
        for key, section in plain(settings).items()
        if isinstance(section, dict) and "resourceName" in section
    }
    names = [(path, section["resourceName"]) for path, section in sections.items()]
    names += [
        (f"pools[{n}].resourceName", each.resource_name) for n, each in enumerate(settings.pools)
    ]
    for path, name in names:
        serves = sections.get(path, {}).get("enabled", True)
        if serves and settings.gpu.enabled and settings.gpu.served().has(name):
            yield (
                f"{path}: {name!r} is a name of GPUs, which pods then could not tell from what "
                "else has it; choose another, or set gpu.enabled to false"
            )
    names += [(f"devices[{n}].resource", each.resource) for n, each in enumerate(settings.devices)]
    for path, name in names:
        if re.search(NOT_KUBELETS, name):
            yield (
                f"{path}: kubelet takes no {name!r} from a plugin: it begins with requests., has "
                "kubernetes.io/, or more than 244 characters before its slash; choose another"
            )
    for place, pool in enumerate(settings.pools):
        if not (pool.devices or pool.classes or pool.addresses):
            yield f"pools[{place}].devices: give at least one of devices, classes and addresses"
    if not settings.gpu.device_list_strategy:
        yield "gpu.deviceListStrategy: without any no container is given its GPU; use envvar"
    if not any(each.enabled for each in settings.served):
        yield "tpu.enabled: nothing is left to advertise; enable TPUs or GPUs, or add a pool"
    if settings.device_list_strategy == "cdi":
        yield from _kinds(settings)


def _devices(settings: Settings) -> Iterator[str]:
    apis = {each.resource: each.api for each in reversed(settings.devices) if each.api}
    for place, each in enumerate(settings.devices):
        path = f"devices[{place}]"
        if not each.match.given():
            yield f"{path}.match: give at least one of uuid, index, pci and model"
        if each.exclude and (each.resource or each.rule(place).own != OwnSettings()):
            yield f"{path}: what is left out has no resource and no settings; give only exclude"
        if each.api and not each.resource:
            yield f"{path}.api: it is for devices of another resource; give resource as well"
        if each.resource:
            yield from _moved(settings, path, each, apis)


def _moved(
    settings: Settings, path: str, each: DeviceSettings, apis: Mapping[str, str]
) -> Iterator[str]:
    """Yield why devices cannot have the resource of *each*; *apis* are what rules say of them."""
    known = settings.hardware_api(each.resource) or apis.get(each.resource)
    if each.api and known is not None and known != each.api:
        yield f"{path}.api: {each.resource} is served by {known}; give the same, or another name"
    elif known is None and not each.api and len(settings.apis()) > 1:
        yield (
            f"{path}.api: some hardware is served by device-plugin and some by dra; say by which "
            f"of them pods get {each.resource}"
        )


def _dra(settings: Settings) -> Iterator[str]:
    dra = settings.dra
    root = _path(dra.kubelet_root)
    registry = root / PLUGINS_REGISTRY / f"{dra.driver_name}-reg.sock"
    service = root / PLUGINS / dra.driver_name / DRA_SOCKET
    for path in (registry, service):
        if len(bytes(path)) > LONGEST_SOCKET_PATH:
            yield f"dra.driverName: the path {path} is too long for a socket; choose a shorter name"
    for name in dict.fromkeys(pool.resource_name for pool in settings.pools):
        if len({each.api for each in settings.served if each.enabled and each.has(name)}) > 1:
            yield f"pools: {name} is served by both APIs; give its pools the same `api`"


def _kinds(settings: Settings) -> Iterator[str]:
    names = [name for each in settings.functions if each.enabled for name in sorted(each.names)]
    names += [each.resource for each in settings.devices if each.resource]
    for name in names:
        if not is_kind(ResourceName(name)):
            yield (
                f"deviceListStrategy: {name!r} cannot be a CDI kind, because both parts of one "
                "begin with a letter; choose another resourceName, or device-nodes"
            )


def _tpu(settings: Settings) -> Iterator[str]:
    tpu = settings.tpu
    if tpu.generation and tpu.generation not in GENERATIONS:
        import difflib  # noqa: PLC0415 - only where a word is wrong

        near = difflib.get_close_matches(tpu.generation, GENERATIONS, n=1)
        known = f"did you mean {near[0]}?" if near else f"known are {', '.join(GENERATIONS)}"
        yield f"tpu.generation: there is no {tpu.generation!r}; {known}"
    hosts = len(tpu.worker_hostnames)
    if tpu.worker_id is not None and hosts and tpu.worker_id >= hosts:
        yield (
            f"tpu.workerId: {tpu.worker_id} is too high for the {hosts} hosts of "
            f"tpu.workerHostnames; the highest is {hosts - 1}"
        )


def _sharing(settings: Settings) -> Iterator[str]:
    path = "sharing.timeSlicing.resources"
    resources = settings.sharing.time_slicing.resources
    seen: set[str] = set()
    for place, each in enumerate(resources):
        where = f"{path}[{place}]"
        if each.name in seen:
            yield f"{where}.name: {each.name} is there twice; remove one"
        seen.add(each.name)
        if each.rename not in {"", name := each.name + SHARED}:
            yield f"{where}.rename: {each.rename!r} is not a name for replicas; use {name}"


def _times(settings: Settings) -> Iterator[str]:
    question, retry = settings.kubelet.question, settings.reclaim.retry
    if settings.gate.wait > LONGEST_WAIT:
        yield f"gate.wait: kubelet gives up after 30 s; use at most {LONGEST_WAIT:g}s"
    if settings.allocate.commit_timeout >= _LONGEST_ALLOCATE:
        yield (
            "allocate.commitTimeout: kubelet admits no other pod meanwhile; use less than "
            f"{_LONGEST_ALLOCATE:g}s"
        )
    if question.min_interval > question.idle_interval:
        yield "kubelet.question.minInterval: it is longer than question.idleInterval; lower it"
    if settings.reclaim.leaked_sandbox == "restart" and settings.reclaim.mode != "terminate":
        yield "reclaim.leakedSandbox: restart ends processes; it needs reclaim.mode: terminate"
    if retry.first > retry.last:
        yield "reclaim.retry.first: it is longer than reclaim.retry.last; lower it"
