"""What engines publish of their KV caches: events, their order, block hashes, and the blocks that an engine holds."""
