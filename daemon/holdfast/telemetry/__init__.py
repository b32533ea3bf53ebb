"""What the daemon shows of itself: logs, metrics and probes."""
