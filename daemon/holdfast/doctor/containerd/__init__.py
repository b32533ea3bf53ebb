"""Checks of containerd's configuration."""
