"""What the daemon runs on: published values, lanes for blocking calls, supervised tasks, time."""
