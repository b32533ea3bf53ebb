"""PCI functions and their IOMMU groups: sysfs, VFIO, resets, events."""
