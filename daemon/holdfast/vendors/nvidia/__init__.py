"""The adapter of NVIDIA's GPUs and MIG slices; `adapter` loads the rest once there is a driver."""
