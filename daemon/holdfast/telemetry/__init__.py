"""Logs, metrics and probes of the daemon."""
