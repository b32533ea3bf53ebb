"""Generated from proto/deviceplugin/v1beta1; see proto/README.md."""
