"""`tidegate limit …` and `tidegate price …`: over the admin API of a running gateway."""

import re
import time
from typing import Annotated, Any, Final

import typer
from rich.live import Live

from gateway.cli.admin_client import ADMIN, API, AdminClient, AdminUrl, TokenFile, Yes, api, segment, sure
from gateway.cli.amounts import AMOUNT, Meant, as_dollars, limit_amount, rate_amount
from gateway.cli.printing import AsJson, fail, out, show, table_of
from tenancy.limits import METERS_BY_NAME, MONEY_ALIAS, Level, Window

limit_app = typer.Typer(no_args_is_help=True, help="Limits: what may be used by whom. Over the admin API.")
price_app = typer.Typer(no_args_is_help=True, help="Prices: what tokens cost, from a moment on. Over the admin API.")


def _checked_limit_id(text: str) -> str:
    """The id itself, checked here because the admin API answers a mistyped id like one of a limit that does not exist."""
    parts = text.split(":")
    words = {"level": [level.value for level in Level], "meter": list(METERS_BY_NAME), "window": [window.value for window in Window]}
    for field, at in (("level", 0), ("meter", -2), ("window", -1)):
        if len(parts) < 4 or parts[at] not in words[field]:
            shown = parts[at] if len(parts) > 3 else text
            known = [word for word in words[field] if word != MONEY_ALIAS]
            raise typer.BadParameter(f"{shown!r} is no {field}; write level:name:meter:window, with one of {', '.join(known)}")
    return text


LimitId = Annotated[
    str,
    typer.Argument(
        callback=_checked_limit_id, help="level:name:meter:window, e.g. tenant:acme:requests:minute, project:acme/web:cost_usd:month."
    ),
]
STATE: Final = ("id", "amount", "used", "held", "remaining", "reset_s")


@limit_app.command("list")
def list_limits(admin: AdminUrl = ADMIN, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """Print every limit."""
    limits = api(admin, token_file).items(f"{API}/limits")
    show(
        limits if as_json else list(map(_for_people, limits)), ("id", "amount", "burst", "soft", "raised_to", "raised_until_unix"), as_json
    )


@limit_app.command("set")
def set_limit(
    limit: LimitId,
    amount: Annotated[str, typer.Argument(help=AMOUNT)],
    burst: Annotated[str | None, typer.Option(help="Per minute only: how much may come at once; default: the amount.")] = None,
    soft: Annotated[str | None, typer.Option(help="From here on replies carry a warning; at most the amount, and the burst.")] = None,
    yes: Meant = False,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Set a limit; gateways follow within 5 s. Money is in dollars: `tidegate limit set tenant:acme:cost_usd:month 50`."""
    written = {"AMOUNT": amount, "--burst": burst, "--soft": soft}
    body = {option.strip("-").lower(): limit_amount(limit, option, text, yes) for option, text in written.items() if text is not None}
    saved = _for_people(api(admin, token_file).put(f"{API}/limits/{segment(as_dollars(limit))}", body))
    out.print(f"limit {saved['id']} is {saved['amount']}", markup=False)


@limit_app.command("raise")
def raise_limit(
    limit: LimitId,
    to: Annotated[str, typer.Argument(help=AMOUNT)],
    for_: Annotated[str, typer.Option("--for", help="For how long: 90s, 30m, 12h or 7d.")] = "1h",
    yes: Meant = False,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Raise a limit for a time; afterwards it is what it was."""
    body = {"to": limit_amount(limit, "TO", to, yes), "until_unix": time.time() + seconds_of(for_)}
    saved = _for_people(api(admin, token_file).post(f"{API}/limits/{segment(as_dollars(limit))}/raise", body))
    out.print(f"limit {saved['id']} is {saved['raised_to']} for {for_}, and {saved['amount']} afterwards", markup=False)


@limit_app.command("remove")
def remove_limit(limit: LimitId, yes: Yes = False, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Remove a limit."""
    limit = as_dollars(limit)
    sure(f"Remove limit {limit}?", yes)
    api(admin, token_file).remove(f"{API}/limits/{segment(limit)}")
    out.print(f"limit {limit} removed", markup=False)


@limit_app.command("state")
def limit_state(
    name: Annotated[str, typer.Argument(help="The tenant, or the organisation or model with --level.")] = "",
    level: Annotated[str, typer.Option(help="tenant, organisation, model or global.")] = "tenant",
    user: Annotated[str | None, typer.Option(help="An end user of the tenant.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until interrupted.")] = False,
    every_s: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print how limits stand now: used, held, left, and when all of it is there again."""
    client = api(admin, token_file)
    path = f"{API}/limits/state?level={segment(level)}&name={segment(name)}" + ("" if user is None else f"&user={segment(user)}")
    if not watch:
        show(_states(client, path, as_json), STATE, as_json)
        return
    try:
        if as_json or not out.is_terminal:  # a table redrawn in place suits no file and no other program
            while True:
                show(_states(client, path, as_json), STATE, as_json)
                time.sleep(every_s)
        with Live(table_of(_states(client, path, as_json), STATE), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(table_of(_states(client, path, as_json), STATE), refresh=True)
    except KeyboardInterrupt:
        return


def _states(client: AdminClient, path: str, as_json: bool) -> list[dict[str, Any]]:
    states = client.items(path)
    return states if as_json else list(map(_for_people, states))


def _for_people(limit: dict[str, Any]) -> dict[str, Any]:
    """A limit or its state as the API shows it, with amounts of money in dollars."""
    money = {name.removesuffix("_usd"): f"${value}" for name, value in limit.items() if name.endswith("_usd") and value is not None}
    return {**limit, **money}


@price_app.command("list")
def list_prices(
    model: Annotated[str, typer.Option(help="Only those of this model.")] = "",
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print prices, in dollars per million tokens.

    `doubtful` names parts that are free in a price of an older version, perhaps only because they were left out: set such a price anew.
    """
    prices = api(admin, token_file).items(f"{API}/prices?model={segment(model)}")
    rows = prices if as_json else [{**price, **{kind: f"${rate}" for kind, rate in price["usd_per_mtok"].items()}} for price in prices]
    kinds = ("uncached_input", "cached_input", "output", "reasoning")
    show(rows, ("id", "model", "revision", "effective_unix", *kinds, "doubtful"), as_json)


@price_app.command("set")
def set_price(
    model: str,
    input_: Annotated[str, typer.Option("--input", help="Dollars per million prompt tokens, as 0.20.")],
    output: Annotated[str, typer.Option(help="Dollars per million generated tokens.")],
    cached_input: Annotated[str | None, typer.Option(help="Dollars per million tokens from the prefix cache; default: as --input.")] = None,
    reasoning: Annotated[str | None, typer.Option(help="Dollars per million tokens of hidden reasoning; default: as --output.")] = None,
    revision: Annotated[str, typer.Option(help="One revision of the pool.")] = "*",
    yes: Meant = False,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Set what a model costs from now on; requests under way keep the price they were admitted at."""
    written = {"--input": input_, "--cached-input": cached_input, "--output": output, "--reasoning": reasoning}
    kinds = {"--input": "uncached_input"}
    rates = {
        kinds.get(option, option.strip("-").replace("-", "_")): rate_amount(option, text, yes)
        for option, text in written.items()
        if text is not None
    }
    price = api(admin, token_file).post(f"{API}/prices", {"model": model, "revision": revision, "usd_per_mtok": rates})
    shown = ", ".join(f"{kind} ${rate}" for kind, rate in price["usd_per_mtok"].items())
    out.print(f"{price['id']}: {model} costs that from now on, per million tokens: {shown}", markup=False)


def seconds_of(text: str) -> int:
    """Seconds of a duration like `90s`, `30m`, `12h` or `7d`; ends the command for anything else."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", text)
    if match is None:
        fail(f"--for {text!r} is no length of time; write 90s, 30m, 12h or 7d", code=2)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[match[2]]
