"""The node labels of TPU chips: by keys of our own, and by GKE's where they are asked for."""

import math

from holdfast.model.tpu.env import TpuHostFacts
from holdfast.model.tpu.generations import TpuGeneration, parse_topology

_OURS, _GKE = "holdfast.dev/tpu", "cloud.google.com/gke"


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
    sides = parse_topology(facts.topology or "")
    topology = "x".join(map(str, sides or ()))
    if sides is not None:
        labels[f"{_OURS}.topology"] = topology
        kind = facts.accelerator_type or generation.accelerator_type(math.prod(sides))
        labels[f"{_OURS}.accelerator-type"] = kind
    if gke and generation.gke:
        labels[f"{_GKE}-tpu-accelerator"] = generation.gke
        labels[f"{_GKE}-accelerator-count"] = str(chips)
        if sides is not None:
            labels[f"{_GKE}-tpu-topology"] = topology
    return labels
