"""The kernel and the driver, typed, below an injected root; no policy."""
