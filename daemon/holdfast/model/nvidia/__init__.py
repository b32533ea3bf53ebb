"""The rules for NVIDIA's GPUs."""

from holdfast.model.cards import ReplicaNames

REPLICAS = ReplicaNames(mark="::", suffix=".shared")
"""What replicas are called, as by NVIDIA's plugin: ``GPU-...::0`` of nvidia.com/gpu, or of
nvidia.com/gpu.shared."""
