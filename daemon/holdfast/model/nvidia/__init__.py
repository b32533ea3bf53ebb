"""The rules for NVIDIA's GPUs."""
