"""Looks at a node, live or copied, changes nothing, and says what is wrong and what to do."""
