"""Builds the parts of the daemon and connects them."""
