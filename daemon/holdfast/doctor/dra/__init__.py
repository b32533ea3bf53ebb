"""Checks what claims (Dynamic Resource Allocation) need of kubelet and of the API server."""
