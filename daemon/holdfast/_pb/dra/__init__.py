"""Generated from proto/dra; see proto/README.md."""
