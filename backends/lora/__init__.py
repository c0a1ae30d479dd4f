"""LoRA adapters on engines: which are where, how they are loaded and unloaded, and the digest of an adapter folder."""
