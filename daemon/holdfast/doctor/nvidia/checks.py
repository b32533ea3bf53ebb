"""Judges NVIDIA's driver on the node: the kernel's part, its library, its nodes and its daemons."""

from collections.abc import Iterator

from holdfast.doctor.area import Area
from holdfast.doctor.containerd.facts import containerd_facts
from holdfast.doctor.finding import Finding
from holdfast.doctor.node import Node
from holdfast.doctor.nvidia.facts import OPERATOR, OPERATOR_DEV, NvidiaFacts, nvidia_facts, of_node
from holdfast.doctor.nvidia.toolkit import toolkit_facts, toolkit_findings
from holdfast.doctor.programs import Ask, ask_for

_AREA = Area("nvidia")
_MODPROBE = "run `nvidia-modprobe -u -c 0` (or nvidia-smi) on the node, which makes them"
_OPERATORS_MODPROBE = (
    f"run `chroot {OPERATOR} nvidia-modprobe -u -c 0` on the node: GPU Operator's driver container "
    "makes them, in its own root, and the host's program would make them in /dev"
)
_OTHERS = ("vfio-pci", "nouveau", "nvidia-vgpu-vfio")


def nvidia_findings(node: Node, ask: Ask | None = None) -> Iterator[Finding]:
    """Yield what is right and wrong about NVIDIA's driver on *node*."""
    if not node.settings.gpu.enabled:
        yield _AREA.ok(check="driver", reason="gpu.enabled is false")
        return
    facts = nvidia_facts(node)
    yield driver_finding(facts)
    if not facts.driver.present:
        return
    yield from library_findings(facts)
    yield from root_findings(facts, node)
    yield from node_findings(facts, copied=not node.live)
    yield from daemon_findings(facts)
    toolkit = toolkit_facts(node, containerd_facts(node, ask or ask_for(node)))
    yield from toolkit_findings(toolkit, node.settings.gpu)


def driver_finding(facts: NvidiaFacts) -> Finding:
    """Return whether the kernel has the driver, where there is a GPU for it."""
    idle = [address for address, driver in facts.gpus.items() if driver not in _OTHERS]
    if facts.driver.present:
        version = facts.version or "of a version that /proc/driver/nvidia does not say"
        return _AREA.ok(check="driver", reason=f"the kernel has NVIDIA's driver {version}")
    if idle:
        return _AREA.warn(
            check="driver",
            reason=(
                f"there is no /proc/driver/nvidia, and NVIDIA GPUs at {', '.join(idle)}: none of "
                "them is advertised"
            ),
            remedy=(
                "load NVIDIA's driver, or wait for GPU Operator's driver container: holdfast "
                "notices without a restart"
            ),
        )
    others = ", ".join(f"{address} has {driver}" for address, driver in facts.gpus.items())
    return _AREA.ok(
        check="driver",
        reason=(
            f"there is no driver of NVIDIA's, and no GPU for it{f' ({others})' if others else ''}"
        ),
    )


def library_findings(facts: NvidiaFacts) -> Iterator[Finding]:
    """Yield whether the driver's library is there and of the version that the kernel has."""
    if not facts.libraries:
        yield _AREA.fail(
            check="library",
            reason=(
                "libnvidia-ml.so.1 is neither below gpu.driverRoot, nor below /run/nvidia/driver, "
                "nor in the usual folders: no GPU can be told of"
            ),
            remedy=(
                "set gpu.driverRoot to the root of the file system that has the driver's library, "
                "as the daemon sees it"
            ),
        )
        return
    path, version = next(iter(facts.libraries.items()))
    if version and facts.version and version != facts.version:
        yield _AREA.fail(
            check="library",
            reason=(
                f"{path} is of driver {version}, and the kernel has {facts.version}: NVML refuses "
                "to work (driver/library version mismatch)"
            ),
            remedy=(
                "reboot, or load the kernel module anew, so that both are of one version; or set "
                "gpu.driverRoot to the right library's root"
            ),
        )
        return
    known = f" of driver {version}" if version else ", whose name does not say its version"
    yield _AREA.ok(check="library", reason=f"{path} is the library{known}")


def root_findings(facts: NvidiaFacts, node: Node) -> Iterator[Finding]:
    """Yield which folder has the driver's nodes, and who looks for them elsewhere in vain."""
    root = facts.root.root
    if root is None:
        seen = any(each.control is not None for each in facts.driver.roots)
        if not node.live and not seen:
            yield _AREA.warn(
                check="device-root",
                reason=f"the copy has no device nodes of the driver's: {facts.root.reason}",
                remedy=(
                    "run doctor on the node itself: most ways to copy a node leave out its device "
                    "nodes"
                ),
            )
            return
        yield _AREA.fail(check="device-root", reason=facts.root.reason, remedy=_made(facts))
        return
    host = of_node(node, root.host) if root.host.startswith(str(node.root)) else root.host
    yield _AREA.ok(check="device-root", reason=f"{host} has nvidiactl of major {root.control}")
    elsewhere = [each for each in facts.driver.roots if each.folder == node.host.dev]
    if host == "/dev" or any(each.control == root.control for each in elsewhere):
        yield _AREA.ok(
            check="criu", reason="/dev has the driver's nodes, where CRIU looks for them"
        )
        return
    owner = (
        "GPU Operator's driver container has them"
        if host == OPERATOR_DEV
        else "it is so configured"
    )
    yield _AREA.warn(
        check="criu",
        reason=(
            f"the driver's nodes are in {host} ({owner}) and not in /dev: CRIU of before 4.1 looks "
            "for /dev/nvidiactl alone, takes the node for one without a GPU, and its CUDA plugin "
            "turns itself off (criu#2509)"
        ),
        remedy=(
            "use CRIU 4.1 or later, which asks /proc/driver/nvidia, or have the nodes in /dev as "
            "well (nvidia-modprobe on the node); holdfast itself finds them"
        ),
    )


def node_findings(facts: NvidiaFacts, *, copied: bool) -> Iterator[Finding]:
    """Yield the nodes that are missing or of a former driver."""
    if facts.root.root is None:
        return
    make = _made(facts)
    wrong = False
    for each in facts.nodes:
        if each.wanted is None or each.major == each.wanted:
            continue
        if each.major is not None:
            wrong = True
            yield _AREA.fail(
                check="nodes",
                reason=(
                    f"{each.path} has major {each.major}, and the kernel gave its driver "
                    f"{each.wanted} (/proc/devices): a former driver left it"
                ),
                remedy=f"remove {each.path}, then {make}",
            )
        elif each.needed:
            wrong = True
            found = _AREA.warn if copied or each.unified else _AREA.fail
            why = "CUDA needs it" if each.unified else "the kernel has this GPU"
            yield found(check="nodes", reason=f"there is no {each.path}, and {why}", remedy=make)
    if any(each.unified and each.wanted is None for each in facts.nodes):
        wrong = True
        yield _AREA.warn(
            check="nodes",
            reason=(
                "/proc/devices has no nvidia-uvm: CUDA programs cannot start until that module is "
                "loaded"
            ),
            remedy=make,
        )
    if not wrong:
        yield _AREA.ok(
            check="nodes",
            reason=f"{len(facts.nodes)} nodes have the major numbers of /proc/devices",
        )


def _made(facts: NvidiaFacts) -> str:
    """Say how nodes of the driver come to be on this node: by whom depends on where it is."""
    first = next(iter(facts.libraries), "")
    return _OPERATORS_MODPROBE if first.startswith(f"{OPERATOR}/") else _MODPROBE


def daemon_findings(facts: NvidiaFacts) -> Iterator[Finding]:
    """Yield whether the daemons run that GPUs behind NVSwitches need."""
    fabric, kept = facts.daemons["nvidia-fabricmanager"], facts.daemons["nvidia-persistenced"]
    if not facts.switches:
        yield _AREA.ok(
            check="fabric-manager",
            reason="there is no NVSwitch on PCI, so nobody needs fabric manager",
        )
    elif fabric:
        yield _AREA.ok(
            check="fabric-manager",
            reason=f"fabric manager runs ({fabric}) for {len(facts.switches)} NVSwitches",
        )
    else:
        yield _AREA.warn(
            check="fabric-manager",
            reason=(
                f"there are NVSwitches ({', '.join(facts.switches)}), and neither "
                "/run/nvidia-fabricmanager/socket nor a process nv-fabricmanager: CUDA then fails "
                "with error 802 (system not yet initialized)"
            ),
            remedy=(
                f"start nvidia-fabricmanager {facts.version} on the node: it must be of the "
                "driver's own version"
            ),
        )
    if kept:
        yield _AREA.ok(check="persistenced", reason=f"nvidia-persistenced runs ({kept})")
    elif facts.switches:
        yield _AREA.warn(
            check="persistenced",
            reason=(
                "there are NVSwitches, and neither /run/nvidia-persistenced/socket nor a process "
                "nvidia-persistenced: the driver takes GPUs down whenever nobody has them open"
            ),
            remedy="start nvidia-persistenced on the node",
        )
    else:
        yield _AREA.ok(
            check="persistenced",
            reason="nvidia-persistenced does not run, and no NVSwitch needs it",
        )
