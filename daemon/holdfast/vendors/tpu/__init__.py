"""The adapter of Google's TPU chips."""
