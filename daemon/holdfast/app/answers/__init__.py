"""What the daemon answers to the command line."""
