"""Generated from proto/podresources/v1; see proto/README.md."""
