"""Generated from proto/dra/v1; see proto/README.md."""
