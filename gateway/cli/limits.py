"""`tidegate limit …` and `tidegate price …`: what may be used by whom, and what tokens cost."""

import time
from typing import Annotated, Any, Final

import typer
from rich.live import Live
from rich.table import Table

from gateway.cli.admin_client import API, AdminClient, Yes, segment, sure
from gateway.cli.amounts import AMOUNT, Meant, as_dollars, limit_amount, rate_amount
from gateway.cli.connection import GatewayOptions, StoreOptions
from gateway.cli.durations import DURATION, rough_duration, seconds_of
from gateway.cli.groups import CommandGroup
from gateway.cli.key_labels import key_labels
from gateway.cli.policy_names import unknown_model
from gateway.cli.printing import OutputOptions, err, moment, out, table_of
from tenancy.limits import METERS_BY_NAME, MONEY_ALIAS, Level, counted, shown_amount, window_named, window_words

limit_app = CommandGroup("Limits: what may be used by whom.")
price_app = CommandGroup("Prices: what tokens cost, from a moment on.")


def _checked_limit_id(text: str) -> str:
    """The id itself, checked here because the admin API answers a mistyped id like one of a limit that does not exist."""
    parts = text.split(":")
    words = {"level": [level.value for level in Level], "meter": list(METERS_BY_NAME), "window": window_words()}
    for field, at in (("level", 0), ("meter", -2), ("window", -1)):
        if len(parts) < 4 or not (parts[at] in words[field] or (field == "window" and _is_window(parts[at]))):
            shown = parts[at] if len(parts) > 3 else text
            known = [word for word in words[field] if word != MONEY_ALIAS]
            raise typer.BadParameter(f"{shown!r} is no {field}; write level:name:meter:window, with one of {', '.join(known)}")
    return text


def _is_window(word: str) -> bool:
    try:
        window_named(word)
    except ValueError:
        return False
    return True


LimitId = Annotated[
    str,
    typer.Argument(
        callback=_checked_limit_id,
        help="level:name:meter:window, e.g. tenant:acme:requests:minute, project:acme/web:cost_usd:month or key:ID:cost_usd:rolling-30d.",
    ),
]
STATE: Final = ("id", "amount", "used", "held", "remaining", "reset_s")
STATE_FOR_PEOPLE: Final = (*STATE[:-1], "reset")
NONE: Final = "none"
"""Written in place of an amount to take it away."""


@limit_app.command("list")
def list_limits(gateway: StoreOptions, output: OutputOptions) -> None:
    """Print every limit."""
    limits = gateway.api().items(f"{API}/limits")
    columns = ("id", "amount", "burst", "soft", "zone", "raised_to", "raised_until_unix")
    output.show(list(map(_for_people, limits)), columns, limits, expendable=("raised_to", "raised_until_unix", "soft", "burst", "zone"))


@limit_app.command("set")
def set_limit(
    limit: LimitId,
    amount: Annotated[str, typer.Argument(help=AMOUNT)],
    gateway: StoreOptions,
    burst: Annotated[
        str | None, typer.Option(help=f"Per minute only: how much may come at once; {NONE} for the amount, the default of a new limit.")
    ] = None,
    soft: Annotated[
        str | None, typer.Option(help=f"From here on replies carry a warning; at most the amount, and the burst; {NONE} for no warning.")
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Per day, week or month: the time zone of the calendar, as Europe/Berlin, or UTC."),
    ] = None,
    yes: Meant = False,
) -> None:
    """Set a limit; gateways follow within 5 s. Money is in dollars: `tidegate limit set tenant:acme:cost_usd:month 50`.

    What is not written stays as it is: the burst, the soft threshold, the zone and a raise, where they still fit the amount.
    """
    written = {"AMOUNT": amount, "--burst": burst, "--soft": soft}
    body = {
        option.strip("-").lower(): None if text == NONE and option != "AMOUNT" else limit_amount(limit, option, text, yes)
        for option, text in written.items()
        if text is not None
    }
    if zone is not None:
        body["zone"] = zone
    api, path = gateway.api(), f"{API}/limits/{segment(as_dollars(limit))}"
    dropped: list[str] = []
    saved = api.put_new(path, body) if api.find(path) is None else api.rewrite(path, lambda record: _kept(record, body, dropped) | body)
    out.print(f"limit {saved['id']} is {_in_words(_for_people(saved))}", markup=False, soft_wrap=True)
    for note in dropped:
        err.print(f"note: {note}", markup=False, soft_wrap=True)


def _kept(record: dict[str, Any], body: dict[str, Any], dropped: list[str]) -> dict[str, Any]:
    """The fields of a limit that are set again as they are; notes on those that do not fit the new amounts go to `dropped`."""
    shown = _for_people(record)
    meter = METERS_BY_NAME[record["meter"]]
    amount = counted(record["meter"], body["amount"])
    burst = body.get("burst", record["burst"])
    least = amount if burst is None else min(amount, counted(record["meter"], burst))
    kept = {name: record[name] for name in ("burst", "zone")}
    if record["soft"] is not None and "soft" not in body:
        if record["soft"] <= least:
            kept["soft"] = _as_sent(record, "soft")
        else:
            above = shown_amount(meter, least)
            dropped.append(f"the soft threshold, {shown['soft']}, is above {above} and was taken away; --soft sets another")
    if record["raised_to"] is not None and record["raised_until_unix"] > time.time():
        if record["raised_to"] > amount:
            kept |= {"raised_to": _as_sent(record, "raised_to"), "raised_until_unix": record["raised_until_unix"]}
        else:
            dropped.append(f"the raise to {shown['raised_to']} has ended: the amount is no less now")
    return kept


def _as_sent(record: dict[str, Any], field: str) -> int | str:
    """An amount of a shown limit as the admin API takes it."""
    money: str | None = record.get(f"{field}_usd")
    amount: int = record[field]
    return amount if money is None else money


def _in_words(limit: dict[str, Any]) -> str:
    """The amounts of a limit for people."""
    parts = [str(limit["amount"])]
    if limit["burst"] is not None:
        parts.append(f"burst {limit['burst']}")
    if limit["soft"] is not None:
        parts.append(f"soft {limit['soft']}")
    if limit["zone"]:
        parts.append(f"in the calendar of {limit['zone']}")
    if limit["raised_to"] is not None:
        parts.append(f"raised to {limit['raised_to']} until {moment(limit['raised_until_unix'])}")
    return ", ".join(parts)


@limit_app.command("alerts")
def list_alerts(
    gateway: GatewayOptions,
    output: OutputOptions,
    of: Annotated[str, typer.Option(help="Only limits whose id begins so, as tenant:acme:.")] = "",
    newest: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many at most.")] = 50,
) -> None:
    """Print which budgets have reached a threshold, the newest first, and whether their messages have arrived."""
    alerts = gateway.api().read(f"{API}/limits/alerts?limit={newest}&of={segment(of)}")["items"]
    if not alerts:
        err.print(f"no budget has reached a threshold so far{f' of those whose ids begin with {of}' if of else ''}", markup=False)
    rows = [{**alert, "at": alert["message"]["at"], "percent": f"{alert['percent']} %"} for alert in alerts]
    output.show(rows, ("at", "limit", "percent", "result", "attempts"), alerts, expendable=("attempts",))


@limit_app.command("forecast")
def limit_forecast(
    gateway: GatewayOptions,
    output: OutputOptions,
    name: Annotated[str, typer.Argument(help="The tenant, or the organisation or model with --level.")] = "",
    level: Annotated[str, typer.Option(help="tenant, organisation, model or global.")] = "tenant",
) -> None:
    """Print what budgets will have spent at the end of their windows, at the pace of the last seven days."""
    found = gateway.api().items(f"{API}/limits/forecast?level={segment(level)}&name={segment(name)}")
    if not found:
        err.print("no limit of the meter cost_usd; set one: tidegate limit set tenant:NAME:cost_usd:month 50", markup=False)
    moments = ("ends_unix", "reached_unix")
    rows = [{**_for_people(one), **{key: "" if one[key] is None else moment(one[key]) for key in moments}} for one in found]
    rows = [{**row, "ends": row["ends_unix"], "spent_up": row["reached_unix"]} for row in rows]
    output.show(rows, ("id", "amount", "spent", "pace_per_day", "expected", "ends", "spent_up"), found, expendable=("ends",))


@limit_app.command("raise")
def raise_limit(
    limit: LimitId,
    to: Annotated[str, typer.Argument(help=AMOUNT)],
    gateway: StoreOptions,
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help=f"For how long, {DURATION}.")] = "1h",
    yes: Meant = False,
) -> None:
    """Raise a limit for a time; afterwards it is what it was."""
    body = {"to": limit_amount(limit, "TO", to, yes), "until_unix": time.time() + seconds_of("--for", for_, 1.0)}
    saved = _for_people(gateway.api().post(f"{API}/limits/{segment(as_dollars(limit))}/raise", body))
    out.print(f"limit {saved['id']} is {saved['raised_to']} for {for_}, and {saved['amount']} afterwards", markup=False)


@limit_app.command("delete")
def delete_limit(limit: LimitId, gateway: StoreOptions, yes: Yes = False) -> None:
    """Delete a limit."""
    limit = as_dollars(limit)
    sure(f"Delete limit {limit}?", yes)
    gateway.api().remove(f"{API}/limits/{segment(limit)}")
    out.print(f"limit {limit} deleted", markup=False)


@limit_app.command("state")
def limit_state(
    gateway: GatewayOptions,
    output: OutputOptions,
    name: Annotated[str, typer.Argument(help="The tenant, or the organisation or model with --level.")] = "",
    level: Annotated[str, typer.Option(help="tenant, organisation, model or global.")] = "tenant",
    user: Annotated[str | None, typer.Option(help="An end user of the tenant.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until interrupted.")] = False,
    every: Annotated[str, typer.Option(metavar="DURATION", help="Time between two looks, at least 200ms.")] = "2s",
) -> None:
    """Print how limits stand now: used, held, left, and when all of it is there again."""
    client = gateway.api()
    # only tables show labels, and only the limits of a tenant have keys among them
    labels = key_labels(gateway.api(quiet=True), [name]) if level == "tenant" and not output.for_scripts else {}
    path = f"{API}/limits/state?level={segment(level)}&name={segment(name)}" + ("" if user is None else f"&user={segment(user)}")
    every_s = seconds_of("--every", every, 0.2)
    if not watch:
        _show_states(client, path, output, labels)
        return
    try:
        if output.for_scripts or not out.is_terminal:  # a table redrawn in place suits no file and no other program
            while True:
                _show_states(client, path, output, labels)
                time.sleep(every_s)
        with Live(_state_table(client, path, labels), console=out, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                live.update(_state_table(client, path, labels), refresh=True)
    except KeyboardInterrupt:
        return


def _show_states(client: AdminClient, path: str, output: OutputOptions, labels: dict[str, str]) -> None:
    states = client.items(path)
    output.show(_rows(states, labels), STATE if output.as_csv else STATE_FOR_PEOPLE, states, expendable=("reset", "held"))


def _state_table(client: AdminClient, path: str, labels: dict[str, str]) -> Table:
    return table_of(_rows(client.items(path), labels), STATE_FOR_PEOPLE)


def _rows(states: list[dict[str, Any]], labels: dict[str, str]) -> list[dict[str, Any]]:
    """States with amounts for people, and the labels of keys behind the ids of their limits."""
    rows = []
    for state in states:
        level, _, rest = str(state["id"]).partition(":")
        label = labels.get(rest.partition(":")[0]) if level == "key" else None
        reset_s = state.get("reset_s", 0.0)
        reset = rough_duration(reset_s) if reset_s > 0 and state["used"] else ""
        rows.append({**_for_people(state), "id": f"{state['id']} ({label})" if label else state["id"], "reset": reset})
    return rows


def _for_people(limit: dict[str, Any]) -> dict[str, Any]:
    """A limit or its state as the API shows it, with amounts of money in dollars."""
    money = {name.removesuffix("_usd"): f"${value}" for name, value in limit.items() if name.endswith("_usd") and value is not None}
    return {**limit, **money}


@price_app.command("list")
def list_prices(
    gateway: StoreOptions,
    output: OutputOptions,
    model: Annotated[str, typer.Option(help="Only those of this model.")] = "",
) -> None:
    """Print prices, in dollars per million tokens.

    `doubtful` names parts that are free in a price of an older version, perhaps only because they were left out: set such a price anew.
    """
    prices = gateway.api().items(f"{API}/prices?model={segment(model)}")
    rows = [{**price, **{kind: f"${rate}" for kind, rate in price["usd_per_mtok"].items()}} for price in prices]
    kinds = ("uncached_input", "cached_input", "output", "reasoning")
    columns = ("id", "model", "revision", "effective_unix", *kinds, "doubtful")
    output.show(rows, columns, prices, expendable=("id", "revision", "effective_unix"))


@price_app.command("set")
def set_price(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The public name of the model.")],
    input_: Annotated[str, typer.Option("--input", help="Dollars per million prompt tokens, as 0.20.")],
    output: Annotated[str, typer.Option(help="Dollars per million generated tokens.")],
    gateway: StoreOptions,
    cached_input: Annotated[str | None, typer.Option(help="Dollars per million tokens from the prefix cache; default: as --input.")] = None,
    reasoning: Annotated[str | None, typer.Option(help="Dollars per million tokens of hidden reasoning; default: as --output.")] = None,
    revision: Annotated[str, typer.Option(help="One revision of the pool.")] = "*",
    yes: Meant = False,
) -> None:
    """Set what a model costs from now on; requests under way keep the price they were admitted at."""
    written = {"--input": input_, "--cached-input": cached_input, "--output": output, "--reasoning": reasoning}
    kinds = {"--input": "uncached_input"}
    rates = {
        kinds.get(option, option.strip("-").replace("-", "_")): rate_amount(option, text, yes)
        for option, text in written.items()
        if text is not None
    }
    price = gateway.api().post(f"{API}/prices", {"model": model, "revision": revision, "usd_per_mtok": rates})
    shown = ", ".join(f"{kind} ${rate}" for kind, rate in price["usd_per_mtok"].items())
    out.print(f"{price['id']}: {model} costs that from now on, per million tokens: {shown}", markup=False)
    if gateway.admin is None and (note := unknown_model(model, gateway.config)) is not None:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
