"""A node, a kubelet and a container runtime in a temporary folder: for `make demo` and the tests."""
