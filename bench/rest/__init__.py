"""What a gateway costs while nobody asks, and how often it reads its engines."""
