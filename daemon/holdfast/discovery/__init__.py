"""Turns what the kernel shows into an inventory of devices, and keeps it true."""
