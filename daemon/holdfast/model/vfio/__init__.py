"""Which VFIO devices are advertised, and whether they can be used."""
