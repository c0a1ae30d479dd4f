"""What guard rules find, and what they cost."""
