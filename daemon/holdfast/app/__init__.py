"""The composition root: builds the parts, wires them, starts and stops them in order."""
