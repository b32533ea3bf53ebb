"""What the node shows of itself: memory, filesystems, cgroups; and whether the daemon is ready."""
