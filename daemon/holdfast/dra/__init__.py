"""The second door: kubelet and the scheduler, served by Dynamic Resource Allocation."""
