"""Amounts on the command line: dollars for money, whole numbers for the rest, and a `--yes` for amounts that are hardly meant.

A shell replaces an unquoted `$50` by `0` and `$5` by nothing, and people mistake the unit of money. So an amount of 0 or a very small
one ends the command with a sentence that says how the amount was understood, unless `--yes` says that it is meant.
"""

import re
from typing import Annotated, Final

import typer

from gateway.cli.printing import err, fail
from tenancy.limits import MAX_AMOUNT, METERS_BY_NAME, MONEY_ALIAS, MONEY_METER, Meter, counted, shown_amount
from tenancy.money import (
    MAX_RATE,
    SMALLEST_PLAUSIBLE_BUDGET,
    SMALLEST_PLAUSIBLE_RATE,
    BadMoney,
    dollars_of,
    nanousd_of,
    shown_dollars,
)

Meant = Annotated[bool, typer.Option("--yes", "-y", help="The amounts are meant, also where they are 0 or suspiciously small.")]
AMOUNT: Final = "A whole number; for cost_usd dollars, as 12.50."
_WHOLE: Final = re.compile(r"[0-9]{1,18}")


def as_dollars(limit: str) -> str:
    """The id of a limit with the public name of its meter; tells on stderr when the older name of money was written."""
    head, meter, window = limit.rsplit(":", 2)
    if meter != MONEY_ALIAS:
        return limit
    public = f"{head}:{MONEY_METER}:{window}"
    err.print(f"note: {MONEY_ALIAS} is the older name, in nano-dollars; write {public} and dollars", markup=False, soft_wrap=True)
    return public


def limit_amount(limit: str, option: str, text: str, meant: bool) -> int | str:
    """An amount of a limit as the admin API takes it under the id of `as_dollars`; ends the command for one that is none or hardly meant.

    Args:
        limit: the id as it was written.
        option: the name of the argument or option, for errors.
        meant: `--yes` was given.
    """
    written = limit.rsplit(":", 2)[1]
    meter = METERS_BY_NAME[written]
    amount = _counted(written, option, text)
    doubt = doubt_of(meter, amount, warns=option == "--soft")
    if doubt is not None and not meant:
        hint = "write dollars without the dollar sign, as 50" if meter is Meter.COST_NANOUSD else "write a number without a dollar sign"
        if written == MONEY_ALIAS:
            hint = f"{MONEY_ALIAS} takes nano-dollars; write {MONEY_METER} and dollars, as 50"
        fail(f"{option}: {text!r} is understood as {doubt}; {hint}, or add --yes if that is meant", code=2)
    return dollars_of(amount) if meter is Meter.COST_NANOUSD else amount


def doubt_of(meter: Meter, amount: int, *, warns: bool = False) -> str | None:
    """The reason why an amount of a limit is hardly meant, as a phrase behind "understood as"; None for a plausible one.

    Args:
        warns: it is a soft threshold, which refuses nothing.
    """
    effect = "warns in the reply to" if warns else "refuses"
    shown = shown_amount(meter, amount)
    if amount == 0:
        return f"{shown}, which {effect} every request"
    if meter is Meter.COST_NANOUSD and amount < SMALLEST_PLAUSIBLE_BUDGET:
        return f"{shown}, less than {shown_dollars(SMALLEST_PLAUSIBLE_BUDGET)}, which {effect} nearly every request"
    return None


def rate_amount(option: str, text: str, meant: bool) -> str:
    """A price in dollars per million tokens as the admin API takes it; ends the command for one that is none or hardly meant."""
    try:
        rate = nanousd_of(text.removeprefix("$"), MAX_RATE)
    except BadMoney as error:
        fail(f"{option}: {error} (dollars per million tokens)", code=2)
    if rate < SMALLEST_PLAUSIBLE_RATE and not meant:
        why = "free of charge" if rate == 0 else f"less than {shown_dollars(SMALLEST_PLAUSIBLE_RATE)}"
        fail(
            f"{option}: {text!r} is understood as {shown_dollars(rate)} per million tokens, {why}; "
            "write dollars per million tokens without the dollar sign, as 0.20, or add --yes if that is meant",
            code=2,
        )
    return dollars_of(rate)


def _counted(written: str, option: str, text: str) -> int:
    dollars = text.startswith("$") and METERS_BY_NAME[written] is Meter.COST_NANOUSD
    try:
        if written == MONEY_METER or dollars:
            return nanousd_of(text.removeprefix("$"), MAX_AMOUNT)
        if _WHOLE.fullmatch(text):
            return counted(written, int(text))
    except ValueError as error:
        fail(f"{option}: {error}", code=2)
    shown = repr(text) if len(text) <= 32 else f"{text[:32]!r}…"
    fail(f"{option}: {shown} is no amount of {written}; write a whole number that is not negative, as 600", code=2)
