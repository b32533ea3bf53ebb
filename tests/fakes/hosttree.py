"""The simulated host that the demo uses, for the tests."""

from simulated.hosttree import GOOGLE, V5E, HostTree

__all__ = ["GOOGLE", "V5E", "HostTree"]
