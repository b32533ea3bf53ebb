"""One look at who has a device open or mapped."""
