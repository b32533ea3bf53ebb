"""A control plane: what of a cluster's API server and scheduler concerns a node with devices."""
