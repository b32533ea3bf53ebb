"""What is checked now and then while the daemon runs."""
