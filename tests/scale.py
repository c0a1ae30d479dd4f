"""How much of a repeated test runs: a short form by default, the requirement's own figure with TIDEGATE_LONG=1 (`make test-long`)."""

import os

LONG = os.environ.get("TIDEGATE_LONG") == "1"


def scaled(short: int, long: int) -> int:
    """`long` is the figure the requirement names."""
    return long if LONG else short
