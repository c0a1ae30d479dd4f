"""Looking for engines and at them: names into addresses, polls, one-token probes, and what is wrong in words for an operator."""
