"""`tidegate scaling`: how many backends each pool should have, and why."""

from gateway.cli.admin_client import API
from gateway.cli.connection import GatewayOptions
from gateway.cli.printing import OutputOptions

_COLUMNS = ("pool", "present", "up", "wanted", "busy", "why")
_BY_ROLE = ("pool", "role", *_COLUMNS[1:])


def scaling(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print how many backends each pool has, how many are recommended, and why."""
    pools = gateway.api().read(f"{API}/scaling")["pools"]
    rows = [
        {
            **pool,
            "wanted": "-" if pool["wanted"] is None else pool["wanted"],
            "busy": "-" if pool["busy"] is None else f"{pool['busy']:.0%}",
        }
        for pool in pools
    ]
    halves = any(pool["role"] != "both" for pool in pools)
    output.show(rows, _BY_ROLE if halves else _COLUMNS, pools)
