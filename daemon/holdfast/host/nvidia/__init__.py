"""NVIDIA's driver on the node, and NVML."""
