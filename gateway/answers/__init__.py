"""Answers from the cache: whole replies as documents (`documents`), their way back to a caller (`replay`), embeddings input by input
(`embeddings`), equal requests that share one engine call (`flights`), and purges (`purges`)."""
