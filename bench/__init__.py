"""Benchmarks. Every published figure has the command that makes it; see docs/numbers.md."""
