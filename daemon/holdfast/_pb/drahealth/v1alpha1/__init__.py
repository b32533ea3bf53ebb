"""Generated from proto/drahealth/v1alpha1; see proto/README.md."""
