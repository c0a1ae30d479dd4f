"""Planted bugs, each with the test file that must notice it: `planted/` has one file for each, `python -m tests.mutants` runs them."""
