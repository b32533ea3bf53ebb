"""holdfast: the node daemon that grants accelerators to one pod at a time and proves them free."""

__version__ = "0.1.0"
