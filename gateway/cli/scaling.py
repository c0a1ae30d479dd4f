"""`tidegate scaling`: how many backends each pool should have, and why; and the hours of a day, for autoscalers that go by the clock."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from domain.membership import Role
from gateway.cli.admin_client import API
from gateway.cli.connection import GatewayOptions
from gateway.cli.printing import OutputOptions

_COLUMNS = ("pool", "role", "present", "up", "wanted", "busy", "forecast", "why")
_HOURS = ("hour", "days", "load", "most", "engines")


def scaling(
    gateway: GatewayOptions,
    output: OutputOptions,
    hours: Annotated[
        str | None,
        typer.Option(metavar="POOL", help="Print what each hour of the day needed in this pool, and values of the chart that follow."),
    ] = None,
    role: Annotated[Role, typer.Option(help="With --hours: whose, where engines compute prompts for each other.")] = "both",
) -> None:
    """Print how many backends each pool has, how many are recommended, and why."""
    api = gateway.api()
    if hours is not None:
        _hours(api.read(f"{API}/scaling/{quote(hours, safe='')}/hours?role={role}"), output)
        return
    pools = api.read(f"{API}/scaling")["pools"]
    rows = [
        {
            **pool,
            "wanted": "-" if pool["wanted"] is None else pool["wanted"],
            "busy": "-" if pool["busy"] is None else f"{pool['busy']:.0%}",
            "forecast": "-" if pool["forecast"] is None else pool["forecast"],
            "why": _why(pool["why"], pool["forecast_why"]),
        }
        for pool in pools
    ]
    halves = any(pool["role"] != "both" for pool in pools)
    predicts = any(pool["forecast_why"] for pool in pools)
    left_out = {"role": not halves, "forecast": not predicts}
    output.show(rows, [name for name in _COLUMNS if not left_out.get(name)], pools)


def _why(why: str, forecast: str) -> str:
    """Both reasons, where the forecast is not the one that counts."""
    return why if not forecast or why.startswith(forecast) else f"{why}; {forecast}"


def _hours(found: dict[str, Any], output: OutputOptions) -> None:
    rows = [{**one, "hour": f"{one['hour']:02d}:00"} for one in found["hours"]]
    output.show(rows, _HOURS, found)
    if not output.for_scripts:
        output.write(_values(found))


def _values(found: dict[str, Any]) -> str:
    """What the chart of the engines takes."""
    if found["min"] is None:
        return f"\n{len(found['hours'])} of the 24 hours of a day are known: there is no schedule yet\n"
    lines = [
        "",
        f"# values of the chart of the engines, for this pool; times of {found['zone']}",
        "autoscaling:",
        f"  min: {max(found['min'], 1)}",
    ]
    lines += [f"  max: {max(found['max'], 1)}", "  schedule:" if found["schedule"] else "  schedule: []"]
    for one in found["schedule"]:
        times = f'start: "{_cron(one["start"])}", end: "{_cron(one["end"])}", timezone: {found["zone"]}'
        lines.append(f"    - {{{times}, engines: {one['engines']}}}")
    return "\n".join(lines) + "\n"


def _cron(time: str) -> str:
    hour, _, minute = time.partition(":")
    return f"{int(minute)} {int(hour)} * * *"
