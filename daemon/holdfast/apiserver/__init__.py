"""The client of Kubernetes' API server; it is loaded for DRA, events and the node's label alone."""
