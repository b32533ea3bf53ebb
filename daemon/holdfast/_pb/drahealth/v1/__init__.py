"""Generated from proto/drahealth/v1; see proto/README.md."""
