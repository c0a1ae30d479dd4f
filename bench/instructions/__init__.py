"""Instructions per request of the production set-up, counted by callgrind: the yardstick that a noisy machine does not move."""
