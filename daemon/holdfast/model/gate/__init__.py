"""Whether a container may start, and what it was promised."""
