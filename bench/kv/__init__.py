"""What listening to KV events costs."""
