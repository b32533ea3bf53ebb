"""Generated from proto/deviceplugin; see proto/README.md."""
