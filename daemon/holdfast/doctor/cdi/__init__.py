"""Checks of the CDI specs."""
