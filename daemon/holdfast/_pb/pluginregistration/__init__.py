"""Generated from proto/pluginregistration; see proto/README.md."""
