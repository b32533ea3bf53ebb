"""The kernel and the driver, typed, read from an injected root; no policy."""
