"""Generated from proto/dra/v1beta1; see proto/README.md."""
