"""The scripts' texts: files in `lua/`, with shared code and the constants of the Python reference put in front."""

from importlib.resources import files
from typing import Final

from tenancy.books import LEASE_US, REAP_AT_MOST, REAPED_US, SETTLED_US
from tenancy.counting import MAX_AHEAD_US, MAX_COUNT, OTHERS
from tenancy.limits import MAX_RATE

_CONSTANTS: Final = {
    "LEASE_US": LEASE_US,
    "SETTLED_US": SETTLED_US,
    "REAPED_US": REAPED_US,
    "REAP_AT_MOST": REAP_AT_MOST,
    "MAX_RATE": MAX_RATE,
    "MAX_AHEAD_US": MAX_AHEAD_US,
    "MAX_COUNT": MAX_COUNT,
    "OTHERS": f"'{OTHERS}'",
}
_PARTS: Final = {
    "admit": ("books", "prune", "admit"),
    "beat": ("books", "beat"),
    "settle": ("books", "settle"),
    "look": ("books", "look"),
    "seed": ("books", "prune", "seed"),
    "presence": ("presence",),
    "turn": ("turn",),
    "seats": ("seats",),
}


def _text(parts: tuple[str, ...]) -> str:
    folder = files("tenancy.stores.valkey").joinpath("lua")
    constants = "".join(f"local {name} = {value}\n" for name, value in _CONSTANTS.items())
    return constants + "".join(folder.joinpath(f"{part}.lua").read_text() for part in parts)


TEXTS: Final = {name: _text(parts) for name, parts in _PARTS.items()}
"""Texts by the name that `Scripts.run` takes."""
