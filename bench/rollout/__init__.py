"""How often rollouts of good and bad versions go back, and after how many requests: whole rollouts, simulated."""
