"""Discovery of engines: DNS look-ups, polls, one-token probes, and diagnoses of failures in words for an operator."""
