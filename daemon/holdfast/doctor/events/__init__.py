"""Checks whether the cluster can be told what is held."""
