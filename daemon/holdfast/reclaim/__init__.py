"""From a pod that is over to a device that is free: watching, releasing, and ending orphans."""
