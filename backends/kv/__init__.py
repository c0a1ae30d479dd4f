"""Knowledge of the engines' KV caches from what they publish: events, their order, block hashes, and the blocks that an engine holds."""
