"""The port through which the counters run scripts."""

from collections.abc import Sequence
from typing import Any, Protocol


class Scripts(Protocol):
    """Runs the scripts of `tenancy.stores.valkey.texts` by name."""

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        """The script's reply: bytes for a packed one, an int, or a list of ints. All keys are in the slot of `keys[0]`. Raises
        CountersAway when the store cannot be reached now, whether the script ran or not: every script may be run again with the same
        arguments."""
        ...
