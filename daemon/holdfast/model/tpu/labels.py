"""The node labels of TPU chips: by keys of our own, and by GKE's where they are asked for."""

import math

from holdfast.model.tpu.env import TpuHostFacts
from holdfast.model.tpu.generations import TpuGeneration, parse_topology

_OURS, _GKE = "holdfast.dev/tpu", "cloud.google.com/gke"


def tpu_labels(
    generation: TpuGeneration, *, on_host: int, facts: TpuHostFacts, gke: bool
) -> dict[str, str]:
    """Return what is known of a host with *on_host* chips, which is a part of the slice of *facts*.

    *gke*: also by the keys that GKE gives its nodes, so that pods written for it are placed here.
    GKE's own nodes have them already.
    """
    labels = {f"{_OURS}.generation": generation.name, f"{_OURS}.count": str(on_host)}
    if generation.hbm_gib is not None:
        labels[f"{_OURS}.memory"] = str(generation.hbm_gib << 10)
    sides = None if facts.topology is None else parse_topology(facts.topology)
    if facts.topology is not None and sides is not None:
        labels[f"{_OURS}.topology"] = facts.topology
        kind = facts.accelerator_type or generation.accelerator_type(math.prod(sides))
        labels[f"{_OURS}.accelerator-type"] = kind
    if gke and generation.gke:
        labels[f"{_GKE}-tpu-accelerator"] = generation.gke
        labels[f"{_GKE}-accelerator-count"] = str(on_host)
        if facts.topology is not None:
            labels[f"{_GKE}-tpu-topology"] = facts.topology
    return labels
