"""Generated from proto/drahealth; see proto/README.md."""
