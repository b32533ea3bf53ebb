"""The rules of Dynamic Resource Allocation: claims, and what is published about devices."""
