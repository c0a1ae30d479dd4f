"""The prompt of a request: its bytes for prefix hashes, its text by the chat template, and its number of tokens."""
