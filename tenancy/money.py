"""Money: dollars as people write and read them, and whole nano-dollars as the code counts them. Pure, exact, without floats.

People write plain decimals (`12.50`), read them with a `$` in front, and never meet a nano-dollar. `nanousd_of` and `dollars_of` are the
only translation, and each undoes the other: `nanousd_of(dollars_of(n)) == n`.
"""

import re
from typing import Final

NANO: Final = 10**9
"""Nano-dollars in a dollar."""
PLACES: Final = 9
"""Most digits after the point: the last one is a nano-dollar."""
MAX_WRITTEN_CHARS: Final = 32
"""Longest amount as text: longer than any amount within bounds, and short enough to be repeated in an error."""
SMALLEST_PLAUSIBLE_BUDGET: Final = NANO // 100
"""One cent, in nano-dollars. A smaller budget admits hardly a request; whoever writes one has most often mistaken the unit."""
SMALLEST_PLAUSIBLE_RATE: Final = NANO // 1000
"""A tenth of a cent per million tokens, in nano-dollars. The cheapest hosted embedding models cost some five times as much; a lower
price is most often one per token (`0.0000002`) or per thousand tokens."""
MAX_RATE: Final = 1000 * NANO
"""The highest price per million tokens: a thousand dollars."""
DOLLARS: Final = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")
"""An amount of dollars: digits, and at most nine behind a point. No sign, exponent, comma or space."""


class BadMoney(ValueError):
    """The text is no amount of dollars; the message says why and what to write, without the name of the option or field."""


def nanousd_of(text: str, at_most: int) -> int:
    """The nano-dollars of an amount of dollars as a plain decimal, without a `$`.

    Args:
        at_most: the largest amount, in nano-dollars.

    Raises:
        BadMoney: the text is no plain decimal, is finer than a nano-dollar, or is above the bound.
    """
    if DOLLARS.fullmatch(text) is None:
        raise BadMoney(f"{_repeated(text)} is no amount of dollars; {_remedy(text)}")
    whole, _, part = text.partition(".")
    amount = int(whole) * NANO + int(part.ljust(PLACES, "0"))
    if amount > at_most:
        raise BadMoney(f"{shown_dollars(amount)} is more than the bound, {shown_dollars(at_most)}; write dollars, not a smaller unit")
    return amount


def dollars_of(nanousd: int) -> str:
    """Nano-dollars as a plain decimal in dollars, exactly: at least two digits after the point, more only where needed."""
    whole, part = divmod(abs(nanousd), NANO)
    return f"{'-' * (nanousd < 0)}{whole}.{f'{part:09d}'.rstrip('0').ljust(2, '0')}"


def shown_dollars(nanousd: int) -> str:
    """Nano-dollars for a reader: `$12.50`."""
    text = dollars_of(nanousd)
    return f"-${text[1:]}" if nanousd < 0 else f"${text}"


def _repeated(text: str) -> str:
    return repr(text) if len(text) <= MAX_WRITTEN_CHARS else f"{text[:MAX_WRITTEN_CHARS]!r}…"


def _remedy(text: str) -> str:
    """What to write in place of a text that is no amount."""
    if not text:
        return "it is empty, as `$5` is in a shell; write it without the dollar sign, as 12.50"
    if text.startswith("-"):
        return "money is not negative; write a plain decimal, as 12.50"
    if "," in text or "_" in text or " " in text:
        return "write it without separators, with a point before the cents, as 1250.50"
    if re.fullmatch(r"[0-9]+\.[0-9]{10,}", text):
        return f"it has more than {PLACES} digits after the point, and the smallest amount is 0.000000001"
    if re.fullmatch(r"\.[0-9]+|[0-9]+\.", text):
        return "write digits on both sides of the point, as 0.50"
    return "write a plain decimal, as 12.50"
