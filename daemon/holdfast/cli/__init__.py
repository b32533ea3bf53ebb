"""The command line: runs the daemon, and shows people and programs what it knows."""

from holdfast.cli.commands import device_plugin, main

__all__ = ["device_plugin", "main"]
