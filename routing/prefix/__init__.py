"""Which backend holds how much of a prompt: prompt chains, the index over backends, KV events, and how far each is believed."""
