"""How a device is taken back from a pod that is over."""
