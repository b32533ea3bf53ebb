"""A node, a kubelet and a container runtime in a temporary folder, around the real daemon."""
