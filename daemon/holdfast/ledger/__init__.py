"""The durable book: every Allocation and lock, on disk before it is acted on."""
