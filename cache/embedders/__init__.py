"""Vectors of texts: a model from an installed package, an engine's embeddings, and what stands around them."""
