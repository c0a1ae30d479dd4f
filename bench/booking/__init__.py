"""How fast usage gets from the write-ahead log to SQL, beside the rate at which workers produce it."""
