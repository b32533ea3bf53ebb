"""Checks of gVisor on the node."""
