"""From Allocate and PreStartContainer to locks: who gets a device, and when it may be touched."""
