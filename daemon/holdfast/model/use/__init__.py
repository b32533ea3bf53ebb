"""Who uses a device, and whether it is free."""
