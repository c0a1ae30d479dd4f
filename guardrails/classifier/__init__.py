"""A small linear classifier for prompt injection: what it reads of a text, its weights, and how they make a score."""
