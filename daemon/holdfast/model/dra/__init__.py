"""The rules of Dynamic Resource Allocation: claims, and what the scheduler is told of devices."""
