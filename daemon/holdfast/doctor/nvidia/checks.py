"""What the doctor says of NVIDIA: the driver, its device nodes, and the container toolkit."""

from collections.abc import Iterator, Mapping, Sequence

from holdfast.doctor.containerd.facts import (
    ConfigFile,
    ContainerdFacts,
    RuntimeTable,
    UnreadableFile,
    containerd_facts,
    read_toml,
)
from holdfast.doctor.finding import Check, Finding, Node, or_well
from holdfast.doctor.gvisor import is_gvisor, shim_config
from holdfast.doctor.nvidia.facts import (
    CONFIGS,
    OPERATOR,
    OPERATOR_DEV,
    PROGRAM,
    TOOLKIT,
    NvidiaDeviceNode,
    daemon_of,
    device_nodes,
    driver_files,
    gpus_and_switches,
    libraries,
    loaded_version,
    of_node,
)
from holdfast.doctor.programs import find_program
from holdfast.host.files.kernelfile import is_file
from holdfast.model.nvidia.roots import DeviceRoot, DriverFacts, device_root

_HOOKS = (
    "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
    "/etc/containers/oci/hooks.d/oci-nvidia-hook.json",
)
_VARIABLES = "accept-nvidia-visible-devices-envvar-when-unprivileged"
_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_NEED_IT = ("envvar", "volume-mounts")
_MODPROBE = "run `nvidia-modprobe -u -c 0` (or nvidia-smi) on the node, which makes them"
_OPERATORS_MODPROBE = (
    f"run `chroot {OPERATOR} nvidia-modprobe -u -c 0` on the node: GPU Operator's driver container "
    "makes them in its own root, and the host's program would make them in /dev"
)
_OTHERS = ("vfio-pci", "nouveau", "nvidia-vgpu-vfio")


def toolkit_findings(node: Node, containerd: ContainerdFacts) -> Iterator[Finding]:
    """Yield whether a runtime acts on what the settings say of a container's GPUs."""
    strategies = node.settings.gpu.device_list_strategy
    asked = [each for each in strategies if each in _NEED_IT]
    told = f"gpu.deviceListStrategy is {', '.join(strategies)}"
    if not asked:
        yield Check("toolkit").ok(f"{told}, which needs no {PROGRAM}")
        return
    yield _started(node, containerd, told)
    config = next((path for path in CONFIGS if is_file(node.path(path))), "")
    if not config:
        return
    read = read_toml(node, config)
    if isinstance(read, UnreadableFile):
        yield Check("toolkit-config").fail(
            f"cannot read {config}: {read.reason}",
            remedy=f"correct it: {PROGRAM} does not start with it",
        )
    else:
        yield _accepted(read, asked)


def _started(node: Node, containerd: ContainerdFacts, told: str) -> Finding:
    runtimes = [each.name for each in containerd.cri.runtimes if _starts_it(node, each, containerd)]
    if runtimes:
        how = f"for pods whose RuntimeClass has handler {', '.join(runtimes)}"
        if containerd.cri.default_runtime in runtimes:
            how = "by default"
        return Check("toolkit").ok(f"{told}: containerd starts {PROGRAM} {how}")
    if hook := next((path for path in _HOOKS if is_file(node.path(path))), ""):
        return Check("toolkit").ok(f"{told}: {hook} has runtimes start it")
    where = find_program(node, PROGRAM, (*containerd.folders, TOOLKIT)) or "it is not found"
    known = containerd.configuration.files or containerd.program
    if known and not node.settings.gpu.pass_device_specs:
        return Check("toolkit").fail(
            f"{told}, but no runtime of containerd starts {PROGRAM} ({where}): a pod gets neither "
            "its GPU's nodes nor the driver's libraries",
            remedy="install NVIDIA's container toolkit and run `nvidia-ctk runtime configure "
            "--runtime=containerd`, or use a CDI strategy",
        )
    other = "" if containerd.present else containerd.other_name
    unread = f"; the configuration of {other} is not read" if other else ""
    return Check("toolkit").warn(
        f"{told}, but nothing seen here starts {PROGRAM} ({where}{unread}): a pod may get none of "
        "the driver's libraries",
        remedy="have the node's runtime start it, for example with `nvidia-ctk runtime configure`, "
        "or use a CDI strategy",
    )


def _starts_it(node: Node, runtime: RuntimeTable, containerd: ContainerdFacts) -> bool:
    if PROGRAM in runtime.binary or PROGRAM in runtime.runtime_type:
        return True
    # gVisor's shim may run it in place of runsc.
    return is_gvisor(runtime) and PROGRAM in shim_config(node, runtime, containerd.folders).binary


def _accepted(config: ConfigFile, asked: Sequence[str]) -> Finding:
    """Return whether the toolkit accepts the strategy from pods without privileges."""
    if "envvar" in asked and config.content.get(_VARIABLES) is False:
        return Check("toolkit-config").fail(
            f"{config.path} has {_VARIABLES} = false, and gpu.deviceListStrategy is envvar: a pod "
            "without privileges gets no GPU",
            remedy=f"use gpu.deviceListStrategy volume-mounts, or set {_VARIABLES} = true",
        )
    if "volume-mounts" in asked and config.content.get(_MOUNTS) is not True:
        return Check("toolkit-config").fail(
            f"{config.path} does not set {_MOUNTS} = true, and gpu.deviceListStrategy is "
            "volume-mounts: a pod gets no GPU",
            remedy=f"set {_MOUNTS} = true in {config.path}, or use gpu.deviceListStrategy envvar",
        )
    return Check("toolkit-config").ok(f"{config.path} lets pods have GPUs by {' and '.join(asked)}")


def nvidia_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of NVIDIA's driver on *node*."""
    if not node.settings.gpu.enabled:
        yield Check("driver").ok("gpu.enabled is false")
        return
    driver, version = driver_files(node).facts(), loaded_version(node.host)
    if not driver.present:
        yield _without_driver(gpus_and_switches(node.host)[0])
        return
    told = version or "of a version that /proc/driver/nvidia does not say"
    yield Check("driver").ok(f"the kernel has NVIDIA's driver {told}")
    found = dict(libraries(node, driver))
    yield _library(found, version)
    make = _OPERATORS_MODPROBE if next(iter(found), "").startswith(f"{OPERATOR}/") else _MODPROBE
    chosen = device_root(driver)
    yield from _roots(node, driver, chosen, make)
    if chosen.root is not None:
        nodes = tuple(device_nodes(node, chosen.root.folder, chosen.root.host))
        well = Check("nodes").ok(f"{len(nodes)} nodes have the major numbers of /proc/devices")
        yield from or_well(_nodes(nodes, make, copied=not node.live), well)
    yield from toolkit_findings(node, containerd_facts(node))
    switches = gpus_and_switches(node.host)[1]
    yield _fabric_manager(node, switches, version)
    yield _persistenced(node, switches)


def _without_driver(gpus: Mapping[str, str]) -> Finding:
    """Return whether there is a GPU for the driver, which the kernel has not."""
    idle = [address for address, driver in gpus.items() if driver not in _OTHERS]
    if idle:
        return Check("driver").warn(
            f"NVIDIA GPUs at {', '.join(idle)} have no driver (there is no /proc/driver/nvidia): "
            "they are not advertised",
            remedy="load NVIDIA's driver, or wait for GPU Operator's driver container. holdfast "
            "notices it without a restart",
        )
    others = ", ".join(f"{address} has {driver}" for address, driver in gpus.items())
    more = f" ({others})" if others else ""
    return Check("driver").ok(f"NVIDIA's driver is not loaded, and there is no GPU for it{more}")


def _library(libraries: Mapping[str, str], version: str) -> Finding:
    """Return whether the driver's library is there, with the version that the kernel has."""
    if not libraries:
        return Check("library").fail(
            "libnvidia-ml.so.1 is not below gpu.driverRoot, nor below /run/nvidia/driver, nor in "
            "the usual folders: no GPU can be found",
            remedy="set gpu.driverRoot to the root of the filesystem with the driver's library, as "
            "the daemon sees it",
        )
    path, its = next(iter(libraries.items()))
    if its and version and its != version:
        return Check("library").fail(
            f"{path} is of driver {its}, and the kernel has {version}: NVML refuses to "
            "work (driver/library version mismatch)",
            remedy="reboot, or load the kernel module again, so that both have one version; or set "
            "gpu.driverRoot to the root of the right library",
        )
    known = f" of driver {its}" if its else ", whose name does not say its version"
    return Check("library").ok(f"{path} is the library{known}")


def _roots(node: Node, driver: DriverFacts, chosen: DeviceRoot, make: str) -> Iterator[Finding]:
    """Yield which folder has the driver's nodes, and which program looks elsewhere for them."""
    root = chosen.root
    if root is None:
        seen = any(each.control is not None for each in driver.roots)
        if not node.live and not seen:
            yield Check("device-root").warn(
                f"the copy has no device nodes of the driver: {chosen.reason}",
                remedy="run the doctor on the node itself: most copies leave out its device nodes",
            )
        else:
            yield Check("device-root").fail(chosen.reason, remedy=make)
        return
    host = of_node(node, root.host)
    yield Check("device-root").ok(f"{host} has nvidiactl of major {root.control}")
    elsewhere = [each for each in driver.roots if each.folder == node.host.dev]
    if host == "/dev" or any(each.control == root.control for each in elsewhere):
        yield Check("criu").ok("/dev has the driver's nodes, where CRIU looks for them")
        return
    owner = "GPU Operator's driver container has them there"
    if host != OPERATOR_DEV:
        owner = "it is so configured"
    yield Check("criu").warn(
        f"the driver's nodes are in {host} ({owner}), not in /dev. CRIU before 4.1 looks for "
        "/dev/nvidiactl alone: it takes the node for one without GPUs, and its CUDA plugin turns "
        "itself off (criu#2509)",
        remedy="use CRIU 4.1 or later, which reads /proc/driver/nvidia, or make the nodes in /dev "
        "too (nvidia-modprobe on the node). holdfast itself finds them",
    )


def _nodes(nodes: Sequence[NvidiaDeviceNode], make: str, *, copied: bool) -> Iterator[Finding]:
    """Yield the nodes that are missing, or that an earlier driver left."""
    for each in nodes:
        if each.wanted is None or each.major == each.wanted:
            continue
        if each.major is not None:
            yield Check("nodes").fail(
                f"{each.path} has major {each.major}, and the kernel gave its driver "
                f"{each.wanted} (/proc/devices): an earlier driver left it",
                remedy=f"remove {each.path}, then {make}",
            )
        elif each.needed:
            why = "CUDA needs it" if each.unified else "the kernel has this GPU"
            yield Check("nodes").warn_or_fail(
                f"there is no {each.path}, and {why}",
                remedy=make,
                fails=not (copied or each.unified),
            )
    if any(each.unified and each.wanted is None for each in nodes):
        yield Check("nodes").warn(
            "/proc/devices has no nvidia-uvm: CUDA programs cannot start before that module is "
            "loaded",
            remedy=make,
        )


def _fabric_manager(node: Node, switches: Sequence[str], version: str) -> Finding:
    if not switches:
        return Check("fabric-manager").ok("there is no NVSwitch, so fabric manager is not needed")
    if runs := daemon_of(node, "nvidia-fabricmanager", "nv-fabricmanager"):
        return Check("fabric-manager").ok(
            f"fabric manager runs ({runs}) for {len(switches)} NVSwitches"
        )
    return Check("fabric-manager").warn(
        f"there are NVSwitches ({', '.join(switches)}), but neither "
        "/run/nvidia-fabricmanager/socket nor a process nv-fabricmanager: CUDA fails with error "
        "802 (system not yet initialized)",
        remedy=f"start nvidia-fabricmanager {version} on the node; it must have the driver's "
        "own version",
    )


def _persistenced(node: Node, switches: Sequence[str]) -> Finding:
    if runs := daemon_of(node, "nvidia-persistenced", "nvidia-persistenced"):
        return Check("persistenced").ok(f"nvidia-persistenced runs ({runs})")
    if not switches:
        return Check("persistenced").ok(
            "nvidia-persistenced does not run, and no NVSwitch needs it"
        )
    return Check("persistenced").warn(
        "there are NVSwitches, but neither /run/nvidia-persistenced/socket nor a process "
        "nvidia-persistenced: the driver shuts GPUs down whenever no process has them open",
        remedy="start nvidia-persistenced on the node",
    )
