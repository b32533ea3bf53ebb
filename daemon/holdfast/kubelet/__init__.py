"""The kubelet's side: what it asks of us, what we ask of it, and what it has in its checkpoint."""
