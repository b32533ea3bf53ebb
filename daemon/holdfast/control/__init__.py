"""The unix socket by which the command line asks the running daemon: one line of JSON each way."""

from holdfast.control.client import ask

__all__ = ["ask"]
