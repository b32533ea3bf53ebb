"""Checks of VFIO and the functions that are to be granted."""
