"""Checks of NVIDIA's driver and toolkit."""
