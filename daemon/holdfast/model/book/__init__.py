"""The book of Allocations and locks, and the rules by which it changes."""
