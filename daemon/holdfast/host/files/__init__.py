"""Files of the node: mounts, links, device numbers, CDI specs, the kernel's small text files."""
