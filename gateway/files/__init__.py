"""Files that callers store with the gateway: `/v1/files`, `/v1/uploads`, and what is removed later (docs/reference/batches.md)."""
