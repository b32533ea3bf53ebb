"""Generated from proto/pluginregistration/v1; see proto/README.md."""
