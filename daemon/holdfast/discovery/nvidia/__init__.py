"""NVIDIA's GPUs: which there are, how they are, what they report."""
