"""The command line: runs the daemon, and shows people and programs what it knows."""

from holdfast.cli.commands import main

__all__ = ["main"]
