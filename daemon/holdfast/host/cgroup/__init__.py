"""Pods' cgroups: their processes, their memory limits and what their runtime keeps of them."""
