"""What replicas of GPUs are called: as NVIDIA's plugin calls them."""

from holdfast.model.cards import ReplicaNames

REPLICAS = ReplicaNames(mark="::", suffix=".shared")
"""``GPU-...::0`` of nvidia.com/gpu, or of nvidia.com/gpu.shared."""
