"""The rules for NVIDIA's GPUs."""

from holdfast.model.cards import ReplicaNames
from holdfast.model.ids import ResourceName

GPU, SLICES = ResourceName("nvidia.com/gpu"), "nvidia.com/mig-"
"""The resource of GPUs, and how those of MIG slices begin, but under strategy single."""
REPLICAS = ReplicaNames(mark="::", suffix=".shared")
"""What replicas are called, as by NVIDIA's plugin: ``GPU-...::0`` of nvidia.com/gpu, or of
nvidia.com/gpu.shared."""
