"""Generated from proto/podresources; see proto/README.md."""
