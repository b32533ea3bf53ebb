"""The adapter of pools: any PCI functions that are granted through VFIO."""
