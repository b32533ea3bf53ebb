"""Holds the chart against a combination: it takes what the daemon takes, and gives what it needs.

What is needed is written from the table in deploy/README.md. Without Helm's engine nothing is held.
"""

import importlib.util
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml

from chart.rendering import RefusedError, objects, one
from holdfast.errors import SettingsError
from holdfast.settings.yamltext import mapping
from matrix import oracle, space
from matrix.oracle import ViolationError
from matrix.space import DRA, Choice
from matrix.world import in_file, theirs

_REGISTRY = "/var/lib/kubelet/plugins_registry"
_SEEN = (
    "tpu.enabled",
    "pools",
    "reclaim.reset",
    "reclaim.rebind",
    "gpu.migStrategy",
    "gpu.deviceListStrategy",
    "deviceListStrategy",
)
"""What of documents mounts and capabilities follow from (docs/operations.md)."""


def judge(choice: Choice, refused: str | None, document: Collection[str] | None = None) -> None:
    """Raise ViolationError where the chart takes what the daemon refuses, or the other way round.

    What is at the paths of *document* is given in a document: if None, as `node.by` says.
    """
    if importlib.util.find_spec("helm_python") is None:
        return
    apart = space.in_document(choice) if document is None else document
    # Of text it does not say all that the daemon would.
    as_text = refused is None and len(apart) % 2 == 1
    try:
        found = objects(_values(choice, apart, as_text=as_text))
    except RefusedError as error:
        if refused is None:
            raise ViolationError(
                f"chart: it refuses what the daemon takes: {str(error)[-600:]} {space.told(choice)}"
            ) from error
        return
    if refused is not None:
        # Of a file of NVIDIA's plugin it says only whether it can be parsed.
        if choice["node.by"] != "nvidia":
            raise ViolationError(
                f"chart: it takes what the daemon refuses: {refused!r} {space.told(choice)}"
            )
        return
    own = _own(choice, apart)
    seen = {**own, **{path: choice[path] for path in _SEEN}}
    try:
        missing = [*_missing(seen, found), *_lost(choice, apart, found), *_classless(own, found)]
    except SettingsError as error:
        missing = [str(error)]
    if missing:
        raise ViolationError(
            f"chart: {missing} (mounts and capabilities follow from the settings) "
            f"{space.told(choice)}"
        )


def _values(choice: Choice, apart: Collection[str], *, as_text: bool) -> dict[str, Any]:
    """Return the values by which an administrator gives nodes the settings of *choice*."""
    config = in_file(choice, apart)
    if choice["node.by"] == "nvidia":
        config["map"] = {"default": yaml.safe_dump(theirs(choice))}
    elif apart:
        document = _document(choice, apart)
        config["map"] = {"default": yaml.safe_dump(document) if as_text else document}
    return {
        "config": config,
        "dra": {"enabled": _claims(choice) or _claims(_own(choice, apart))},
        "privileged": _resets(choice),  # without it nothing can be reset
    }


def _own(choice: Choice, apart: Collection[str]) -> Choice:
    """Return *choice* with the plainest of what is *apart*."""
    return {**choice, **{path: space.plain()[path] for path in apart}}


def _document(choice: Choice, apart: Collection[str]) -> dict[str, Any]:
    return space.tree({path: choice[path] for path in apart})


def _claims(choice: Choice) -> bool:
    """Tell whether some hardware, there or not, comes by claims."""
    apis = [choice[f"{kind}.api"] for kind in ("tpu", "gpu") if choice[f"{kind}.enabled"]]
    return DRA in (*apis, *(each.get("api") for each in (*choice["pools"], *choice["devices"])))


def _missing(choice: Choice, found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what a pod of the chart's lacks."""
    whole = one(found, "DaemonSet")["spec"]["template"]["spec"]
    (main,) = whole["containers"]
    mounts = {each["mountPath"]: bool(each.get("readOnly")) for each in main["volumeMounts"]}
    for path, writable in _mounts(choice):
        if path not in mounts:
            yield f"{path} is not mounted"
        elif writable and mounts[path]:
            yield f"{path} is mounted read-only"
    context = main["securityContext"]
    if not context["privileged"]:  # else it has all
        has = context["capabilities"]["add"]
        lacks = (each for each in _capabilities(choice) if each not in has)
        yield from (f"{each} is not among {has}" for each in lacks)
    if (_claims(choice) or choice["events.enabled"]) and not whole["automountServiceAccountToken"]:
        yield "there is no token"


def _mounts(choice: Choice) -> Iterator[tuple[str, bool]]:
    """Yield which folders the daemon needs, and whether it writes there."""
    rebinds = _on_vfio(choice) and choice["reclaim.rebind"]
    by_name = choice["gpu.enabled"] and any(
        "cdi" in each for each in choice["gpu.deviceListStrategy"]
    )
    if choice["node.by"] in {"nvidia", "document"}:
        yield "/etc/holdfast-named", False
    yield "/var/lib/holdfast", True
    yield "/var/lib/kubelet/device-plugins", True
    yield "/var/lib/kubelet/pod-resources", False
    yield "/host/cgroup", _ends(choice)
    if _on_vfio(choice):
        yield "/dev/vfio", False
    if rebinds or _resets(choice):
        yield "/sys/devices", True
    if rebinds:
        yield "/sys/bus/pci", True
    if by_name or choice["deviceListStrategy"] == "cdi" or _claims(choice):
        yield "/var/run/cdi", True
    if choice["labels.enabled"]:
        yield "/etc/kubernetes/node-feature-discovery/features.d", True
    if _claims(choice):
        yield _REGISTRY, True
        yield f"/var/lib/kubelet/plugins/{choice['dra.driverName']}", True


def _on_vfio(choice: Choice) -> bool:
    return bool(choice["tpu.enabled"] or choice["pools"])


def _resets(choice: Choice) -> bool:
    """Tell whether functions are reset: a GPU with its driver never is."""
    asked = {choice["reclaim.reset"], *(each.get("reset") for each in choice["devices"])}
    return _on_vfio(choice) and "afterForcedRelease" in asked


def _capabilities(choice: Choice) -> Iterator[str]:
    yield from ("SYS_PTRACE", "DAC_READ_SEARCH")
    if _ends(choice):
        yield "KILL"
    if choice["gpu.enabled"] and choice["gpu.migStrategy"] != "none":
        yield "SYS_ADMIN"


def _ends(choice: Choice) -> bool:
    """Tell whether leftovers on any device are ended."""
    rules = {each.get("reclaimMode") for each in choice["devices"]}
    return choice["reclaim.mode"] == "terminate" or "terminate" in rules


def _lost(choice: Choice, apart: Collection[str], found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield which settings do not reach the daemon."""
    maps = [each["data"] for each in found if each["kind"] == "ConfigMap"]
    texts = {name: text for each in maps for name, text in each.items()}
    given = {"config.yaml": in_file(choice, apart)}
    if apart:
        given["default"] = _document(choice, apart)
    for name, wanted in given.items():
        yield from _differs(wanted, mapping(texts[name], name), "")


def _classless(choice: Choice, found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield which resources have no class."""
    classes = {
        each["spec"].get("extendedResourceName"): each["spec"]["selectors"][0]["cel"]["expression"]
        for each in found
        if each["kind"] == "DeviceClass"
    }
    for resource in oracle.published(choice):
        chosen = f'.resource == "{oracle.attribute(resource)}"'
        # A slice is chosen by its profile; no class stands for its resource.
        if chosen not in classes.get(resource, "") and not resource.startswith("nvidia.com/mig-"):
            yield f"no DeviceClass stands for {resource}: {classes}"


def _differs(wanted: Mapping[str, Any], there: Mapping[str, Any], path: str) -> Iterator[str]:
    for key, value in wanted.items():
        if isinstance(value, dict):
            yield from _differs(value, there.get(key, {}), f"{path}{key}.")
        elif there.get(key) != value:
            yield f"config.{path}{key} is {there.get(key)!r}, not {value!r}"
