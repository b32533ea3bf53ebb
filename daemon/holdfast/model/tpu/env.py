"""The environment that tells libtpu which chips it has, the file of it on its host, and labels."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.model.text import is_number
from holdfast.model.tpu.generations import (
    CHIP_BOUNDS,
    TpuGeneration,
    parse_topology,
    single_host_topology,
)

_FIRST_METRICS_PORT = 8431
_CUBE_SIDE = 4
_LITE_RING = 16
_ONE_PROCESS = "1,1,1"
_LINE = re.compile(r"(?:export\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_.-]*)\s*[:=]\s*(?P<value>.*)")
_ACCELERATOR = re.compile(r"[a-z0-9]+-[0-9]{1,6}")
_HOSTNAMES = re.compile(r"[A-Za-z0-9._:\[\]-]+(,[A-Za-z0-9._:\[\]-]+)*")
_FLAG = re.compile(r"true|false", re.ASCII | re.IGNORECASE)
_MOST_PROBLEMS = 8
_MOST_SHOWN = 60
_OURS, _GKE = "holdfast.dev/tpu", "cloud.google.com/gke"


class TpuHostFacts(Struct, frozen=True, kw_only=True):
    """What is known of the slice that this host is part of; None or empty: unknown.

    `topology` is the slice's, in chips: ``2x4``, ``4x4x8``. `worker_hostnames` are those of all
    hosts of the slice, in the order of their worker ids.
    """

    topology: str = ""
    accelerator_type: str = ""
    worker_id: str = ""
    worker_hostnames: tuple[str, ...] = ()
    ici_resiliency: bool | None = None
    vbar_url: str = ""
    """Where the VBAR control service listens, such as ``unix:///var/run/tpu-plugin/vbar.sock``."""


def environment(
    generation: TpuGeneration,
    *,
    granted: int,
    on_host: int,
    facts: TpuHostFacts,
    numa_nodes: tuple[int, ...] = (),
) -> Mapping[str, str]:
    """Return the variables of a container that is granted *granted* of *on_host* chips.

    All chips of a host make the container a worker of the host's slice. A part of them is a slice
    of its own: one host, one worker, chips numbered from 0, because that is how libtpu numbers the
    chips it can open. *numa_nodes* are those of the granted chips.
    """
    if granted >= on_host:
        variables = _slice_variables(generation, granted, facts)
    else:
        variables = _part_variables(generation, granted)
    variables["TPU_SKIP_MDS_QUERY"] = "true"
    ports = granted * generation.metrics_ports_per_chip
    variables["TPU_RUNTIME_METRICS_PORTS"] = _commas(
        range(_FIRST_METRICS_PORT, _FIRST_METRICS_PORT + ports)
    )
    if facts.vbar_url:
        variables["VBAR_CONTROL_SERVICE_URL"] = facts.vbar_url
    if generation.names_nic_numa and numa_nodes:
        variables["WORKLOAD_NIC_PREFERRED_NUMA"] = _commas(sorted(set(numa_nodes)))
    return variables


def resolve(
    generation: TpuGeneration,
    *,
    on_host: int,
    configured: TpuHostFacts,
    from_file: TpuHostFacts,
) -> tuple[TpuHostFacts, tuple[str, ...]]:
    """Merge what is known: configuration, then the tpu-env file, then what the hardware shows.

    Returns the facts and a text for each one that was set aside because it cannot be true of a
    host with *on_host* chips. The worker's id, its peers' names and the accelerator type belong
    to one slice, so where configuration names a topology, the file's are taken only if it names
    the same one or none.
    """
    problems: list[str] = []
    usable: list[TpuHostFacts] = []
    for source, facts in (("the configuration", configured), ("the tpu-env file", from_file)):
        reason = _misfit(facts.topology, on_host) if facts.topology else ""
        if reason:
            unused = f"topology {facts.topology!r} of {source} is not used, nor its hosts and type"
            problems.append(f"{unused}: {reason}")
        else:  # people write 2X4, too
            plain = "x".join(map(str, parse_topology(facts.topology) or ()))
            usable.append(replace(facts, topology=plain))
    topology = next((facts.topology for facts in usable if facts.topology), "")
    of_slice = [facts for facts in usable if facts.topology in {"", topology}]
    known: dict[str, Any] = {"topology": single_host_topology(generation, on_host)}
    for facts in reversed(of_slice):  # what the configuration says counts
        known |= {name: fact for name, fact in asdict(facts).items() if fact not in {"", (), None}}
    return TpuHostFacts(**{**known, "vbar_url": configured.vbar_url}), tuple(problems)


def _misfit(topology: str, on_host: int) -> str:
    """Say why a host with *on_host* chips cannot be part of *topology*; empty when it can."""
    sides = parse_topology(topology)
    if sides is None:
        return "it does not read like 2x4 or 2x2x1"
    bounds = CHIP_BOUNDS.get(on_host)
    if bounds is None:
        return f"this host has {on_host} chips, and no topology is made of such hosts"
    if any(side % box for side, box in zip(_padded(sides), bounds, strict=True)):
        return f"this host's {on_host} chips ({_commas(bounds)}) do not divide it"
    return ""


def _slice_variables(generation: TpuGeneration, chips: int, facts: TpuHostFacts) -> dict[str, str]:
    """Return what a worker that has all chips of its host is told about its slice."""
    variables: dict[str, str] = {}
    sides = parse_topology(facts.topology)
    alone = False
    if sides is not None and not _misfit(facts.topology, chips):
        total = math.prod(sides)
        alone = total == chips
        kind = facts.accelerator_type or generation.accelerator_type(total)
        variables["TPU_TOPOLOGY"] = facts.topology
        variables["TPU_ACCELERATOR_TYPE"] = kind
        # A "v5lite" machine, in contrast to "v5litepod", is a lone device without a torus.
        if not kind.startswith("v5lite-"):
            variables |= _torus_variables(generation, CHIP_BOUNDS[chips], _padded(sides), facts)
    elif facts.accelerator_type:
        variables["TPU_ACCELERATOR_TYPE"] = facts.accelerator_type
    if facts.worker_id:
        variables["TPU_WORKER_ID"] = facts.worker_id
    if facts.worker_hostnames:
        variables["TPU_WORKER_HOSTNAMES"] = ",".join(facts.worker_hostnames)
    if alone and generation.names_single_host_worker:
        variables.setdefault("TPU_WORKER_ID", "0")
        variables.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    return variables


def _torus_variables(
    generation: TpuGeneration,
    bounds: tuple[int, int, int],
    sides: tuple[int, int, int],
    facts: TpuHostFacts,
) -> dict[str, str]:
    """Return how the hosts of a slice lie in its torus, under the newer and the older names."""
    hosts = _commas(side // box for side, box in zip(sides, bounds, strict=True))
    chips = _commas(bounds)
    cube = min(sides) >= _CUBE_SIDE
    wraps = (side == _LITE_RING for side in sides) if generation.lite else repeat(cube, 3)
    wrap = ",".join("true" if wrapped else "false" for wrapped in wraps)
    variables = {
        "TPU_HOST_BOUNDS": hosts,
        "HOST_BOUNDS": hosts,
        "TPU_CHIPS_PER_HOST_BOUNDS": chips,
        "CHIPS_PER_HOST_BOUNDS": chips,
        "TPU_TOPOLOGY_WRAP": wrap,
        "WRAP": wrap,
        "TPU_TOPOLOGY_ALT": "false",
        "ALT": "false",
    }
    if cube and generation.ici_resiliency:
        variables["ENABLE_ICI_RESILIENCY"] = "false" if facts.ici_resiliency is False else "true"
    return variables


def _part_variables(generation: TpuGeneration, chips: int) -> dict[str, str]:
    """Return what a container is told that has some of its host's chips: a slice of its own."""
    variables: dict[str, str] = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    # Machines of this size exist, so libtpu knows the type and the topology; others it may not.
    if chips in generation.chips_per_host:
        topology = single_host_topology(generation, chips)
        variables |= _slice_variables(generation, chips, TpuHostFacts(topology=topology))
    elif chips in CHIP_BOUNDS:
        variables["TPU_HOST_BOUNDS"] = _ONE_PROCESS
        variables["TPU_CHIPS_PER_HOST_BOUNDS"] = _commas(CHIP_BOUNDS[chips])
    if chips in CHIP_BOUNDS:
        variables["TPU_PROCESS_BOUNDS"] = _ONE_PROCESS
        variables["TPU_CHIPS_PER_PROCESS_BOUNDS"] = _commas(CHIP_BOUNDS[chips])
    if chips != max(CHIP_BOUNDS):
        variables["TPU_VISIBLE_CHIPS"] = _commas(range(chips))
    return variables


def _padded(sides: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*sides, 1, 1)[:3]
    return x, y, z


def _commas(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class TpuEnvFile(Struct, frozen=True, kw_only=True):
    """What the file says. `problems` name each line or value that could not be used."""

    facts: TpuHostFacts = TpuHostFacts()
    problems: tuple[str, ...] = ()


def parse_tpu_env(text: str) -> TpuEnvFile:
    """Read lines ``KEY: 'value'`` and ``KEY=value``; never raises, whatever *text* is."""
    problems: list[str] = []
    values: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or line == "---":
            continue
        match = _LINE.fullmatch(line)
        value = None if match is None else _unquoted(match["value"])
        if match is None or value is None:
            problems.append(f"line {number} of tpu-env cannot be read: {_shown(line)}")
            continue
        values[match["key"]] = value
    hostnames = _checked(values, problems, "WORKER_HOSTNAMES", _HOSTNAMES.fullmatch)
    resilient = _checked(values, problems, "ENABLE_ICI_RESILIENCY", _FLAG.fullmatch)
    facts = TpuHostFacts(
        topology=_checked(values, problems, "TOPOLOGY", parse_topology),
        accelerator_type=_checked(values, problems, "ACCELERATOR_TYPE", _ACCELERATOR.fullmatch),
        worker_id=_checked(values, problems, "WORKER_ID", is_number),
        worker_hostnames=tuple(hostnames.split(",")) if hostnames else (),
        ici_resiliency=resilient.lower() == "true" if resilient else None,
    )
    if len(problems) > _MOST_PROBLEMS:
        more = len(problems) - _MOST_PROBLEMS
        problems[_MOST_PROBLEMS:] = [f"tpu-env has {more} more lines or values that are odd"]
    return TpuEnvFile(facts=facts, problems=tuple(problems))


def _unquoted(value: str) -> str | None:
    """Return *value* without its quotes; None when a quote is not closed or text follows it."""
    quote = value[:1]
    if quote not in {"'", '"'}:
        return value if value.isprintable() else None
    inner = value[1:-1]
    if len(value) == 1 or value[-1] != quote or quote in inner or not inner.isprintable():
        return None
    return inner


def _checked(
    values: Mapping[str, str], problems: list[str], key: str, sound: Callable[[str], object]
) -> str:
    """Return the value of *key*, also written with TPU_ before it; empty where there is none."""
    usable = ""
    for name in (f"TPU_{key}", key):
        value = values.get(name, "")
        if value and not sound(value):
            problems.append(f"{name} of tpu-env cannot be used: {_shown(value)}")
        else:
            usable = usable or value
    return usable


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def tpu_labels(
    generation: TpuGeneration, *, chips: int, facts: TpuHostFacts, gke: bool
) -> dict[str, str]:
    """Return what is known of a host that offers *chips*, and of the slice that it is part of.

    *gke*: also by the keys that GKE gives its nodes, so that pods written for it are placed here.
    GKE's own nodes have them already.
    """
    labels = {f"{_OURS}.generation": generation.name, f"{_OURS}.count": str(chips)}
    if generation.hbm_gib is not None:
        labels[f"{_OURS}.memory"] = str(generation.hbm_gib << 10)
    sides = parse_topology(facts.topology)
    if sides is not None:
        labels[f"{_OURS}.topology"] = facts.topology
        kind = facts.accelerator_type or generation.accelerator_type(math.prod(sides))
        labels[f"{_OURS}.accelerator-type"] = kind
    if gke and generation.gke:
        labels[f"{_GKE}-tpu-accelerator"] = generation.gke
        labels[f"{_GKE}-accelerator-count"] = str(chips)
        if sides is not None:
            labels[f"{_GKE}-tpu-topology"] = facts.topology
    return labels
