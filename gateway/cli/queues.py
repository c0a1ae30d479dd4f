"""`tidegate queue …`: who waits, what the next request would meet, and what the queues refused."""

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import API
from gateway.cli.connection import GatewayOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err

queue_app = CommandGroup("The queues: who waits, what the next request would meet, and what was refused.")

_NEXT = ("pool", "priority", "tenant", "waiting", "next", "wait_s", "may_wait_s")
_REFUSED = ("pool", "priority", "reason", "requests")


@queue_app.command("next")
def next_request(
    gateway: GatewayOptions,
    output: OutputOptions,
    tokens: Annotated[int | None, typer.Option(min=1, help="Prompt tokens that no backend has in its cache; default: 500.")] = None,
) -> None:
    """Print what the next request would meet, by pool and class, and of each tenant that waits. Nothing is sent or counted."""
    shown = gateway.api().read(f"{API}/queues" + (f"?tokens={tokens}" if tokens is not None else ""))
    for pool in shown["pools"]:
        if pool["unreached"]:
            err.print(f"{pool['pool']}: {pool['unreached']} of {pool['workers']} workers reach no backend", markup=False, soft_wrap=True)
    records = [{"pool": pool["pool"], **prospect} for pool in shown["pools"] for prospect in pool["prospects"]]
    output.show([_row(record) for record in records], _NEXT, records, expendable=("may_wait_s",))


def _row(record: dict[str, Any]) -> dict[str, Any]:
    met = ", ".join(f"refused: {reason}" for reason in record["refused"]) or ("waits" if record["waits"] else "goes at once")
    unknown = record["waits"] and not record["most_wait_s"]
    wait = "unknown" if unknown else f"{record['least_wait_s']:.2f} to {record['most_wait_s']:.2f}"
    return {**record, "tenant": record["tenant"] or "(nothing waiting)", "next": met, "wait_s": wait}


@queue_app.command("refusals")
def refusals(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print how many requests the queues refused or left unserved since the workers started, by pool, class and reason."""
    found = gateway.api().read(f"{API}/queues/refusals")["refusals"]
    rows = [
        {"pool": one["pool"], "priority": one["priority"], "reason": reason, "requests": count}
        for one in found
        for reason, count in one["reasons"].items()
    ]
    output.show(rows, _REFUSED, found)
