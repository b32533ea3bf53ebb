"""The command line: runs the daemon and asks it questions."""

from holdfast.cli.group import device_plugin, main

__all__ = ["device_plugin", "main"]
