"""`kubectl holdfast`: asks the daemons of a cluster, and shows their answers as one."""

__version__ = "0.1.0"
