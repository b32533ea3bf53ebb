"""The client of Kubernetes' API server; nothing of it is loaded unless DRA or events are on."""
