"""The composition root: builds the parts, wires them, starts and stops them in order."""

from holdfast.app.daemon import run

__all__ = ["run"]
