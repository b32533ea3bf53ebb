"""Checks of kubelet, its plugin folder and its checkpoint."""
