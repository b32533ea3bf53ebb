"""Processes: what they have open, who started them, how they end."""
