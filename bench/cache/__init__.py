"""What the answer cache costs and how well it decides."""
