"""Checks whether a runtime on the node acts on what gpu.deviceListStrategy says of a GPU."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.doctor.containerd.facts import ContainerdFacts, Unreadable, read_toml
from holdfast.doctor.containerd.merge import RuntimeTable
from holdfast.doctor.finding import Check, Finding
from holdfast.doctor.gvisor.facts import is_gvisor, shim_config
from holdfast.doctor.node import Node
from holdfast.doctor.nvidia.runtime import CONFIGS, PROGRAM, TOOLKIT
from holdfast.doctor.programs import find_program
from holdfast.settings.hardware import Gpu

_TOOLKIT = Check("nvidia", "toolkit")
_TOOLKIT_CONFIG = Check("nvidia", "toolkit-config")
_HOOKS = (
    "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    "/etc/containers/oci/hooks.d/oci-nvidia-hook.json",
)
_VARIABLES = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_NEED_IT = ("envvar", "volume-mounts")


class ToolkitFacts(Struct, frozen=True, kw_only=True):
    """What the node has of NVIDIA's container toolkit."""

    program: str = ""
    """The path of nvidia-container-runtime; empty if it was not found."""
    runtimes: tuple[str, ...] = ()
    """The runtimes of containerd that start it."""
    default: bool = False
    """Whether containerd's default runtime is one of them."""
    hook: str = ""
    """The hook with which other runtimes start it."""
    containerd: bool = False
    """Whether containerd's configuration is known."""
    other: str = ""
    """Another runtime that runs this node's pods, whose configuration is not read."""
    config: str = ""
    problem: str = ""
    variables: bool = True
    """Whether pods without privileges may ask by NVIDIA_VISIBLE_DEVICES."""
    mounts: bool = False
    """Whether they may ask by mounts."""


def toolkit_facts(node: Node, containerd: ContainerdFacts) -> ToolkitFacts:
    """Look at *node*, whatever of it is there. Never raises."""
    named = tuple(
        each.name
        for each in containerd.cri.runtimes
        if PROGRAM in each.binary
        or PROGRAM in each.runtime_type
        or (is_gvisor(each) and PROGRAM in _wrapper(node, each, containerd.folders))
    )
    config = next((path for path in CONFIGS if node.path(path).is_file()), "")
    read = read_toml(node, config) if config else None
    said = {} if read is None or isinstance(read, Unreadable) else read.content
    return ToolkitFacts(
        program=find_program(node, PROGRAM, (*containerd.folders, TOOLKIT)),
        runtimes=named,
        default=containerd.cri.default_runtime in named,
        hook=next((path for path in _HOOKS if node.path(path).is_file()), ""),
        containerd=bool(containerd.configuration.files or containerd.program),
        other="" if containerd.present else containerd.other_name,
        config=config,
        problem=read.reason if isinstance(read, Unreadable) else "",
        variables=said.get(_VARIABLES) is not False,
        mounts=said.get(_MOUNTS) is True,
    )


def _wrapper(node: Node, runtime: RuntimeTable, folders: tuple[str, ...]) -> str:
    """Return what gVisor's shim runs in place of runsc; empty if it runs runsc itself."""
    config = shim_config(node, runtime, folders)
    return config.binary if config is not None else ""


def toolkit_findings(facts: ToolkitFacts, gpu: Gpu) -> Iterator[Finding]:
    """Yield whether a runtime acts on what *gpu* says of a container's GPUs."""
    asked = [each for each in gpu.device_list_strategy if each in _NEED_IT]
    told = f"gpu.deviceListStrategy is {', '.join(gpu.device_list_strategy)}"
    if not asked:
        yield _TOOLKIT.ok(f"{told}, which needs no {PROGRAM}")
        return
    yield _started(facts, told, nodes=gpu.pass_device_specs)
    if facts.problem:
        yield _TOOLKIT_CONFIG.fail(
            f"cannot read {facts.config}: {facts.problem}",
            remedy=f"correct it: {PROGRAM} does not start with it",
        )
    elif facts.config:
        yield from _accepted(facts, asked)


def _started(facts: ToolkitFacts, told: str, *, nodes: bool) -> Finding:
    where = facts.program or "it is not found"
    if facts.runtimes:
        names = ", ".join(facts.runtimes)
        how = "by default" if facts.default else f"for pods whose RuntimeClass has handler {names}"
        return _TOOLKIT.ok(f"{told}: containerd starts {PROGRAM} {how}")
    if facts.hook:
        return _TOOLKIT.ok(f"{told}: {facts.hook} has runtimes start it")
    if facts.containerd and not nodes:
        return _TOOLKIT.fail(
            f"{told}, but no runtime of containerd starts {PROGRAM} ({where}): a pod gets neither "
            "its GPU's nodes nor the driver's libraries",
            remedy="install NVIDIA's container toolkit and run `nvidia-ctk runtime configure "
            "--runtime=containerd`, or use a CDI strategy",
        )
    unread = f"; the configuration of {facts.other} is not read" if facts.other else ""
    return _TOOLKIT.warn(
        f"{told}, but nothing seen here starts {PROGRAM} ({where}{unread}): a pod may get none of "
        "the driver's libraries",
        remedy="have the node's runtime start it, for example with `nvidia-ctk runtime configure`, "
        "or use a CDI strategy",
    )


def _accepted(facts: ToolkitFacts, asked: Sequence[str]) -> Iterator[Finding]:
    """Yield whether the toolkit accepts the strategy."""
    if "envvar" in asked and not facts.variables:
        yield _TOOLKIT_CONFIG.fail(
            f"{facts.config} has {_VARIABLES} = false, and gpu.deviceListStrategy is envvar: a pod "
            "without privileges gets no GPU",
            remedy=f"use gpu.deviceListStrategy volume-mounts, or set {_VARIABLES} = true",
        )
    elif "volume-mounts" in asked and not facts.mounts:
        yield _TOOLKIT_CONFIG.fail(
            f"{facts.config} does not set {_MOUNTS} = true, and gpu.deviceListStrategy is "
            "volume-mounts: a pod gets no GPU",
            remedy=f"set {_MOUNTS} = true in {facts.config}, or use gpu.deviceListStrategy envvar",
        )
    else:
        yield _TOOLKIT_CONFIG.ok(f"{facts.config} lets pods have GPUs by {' and '.join(asked)}")
