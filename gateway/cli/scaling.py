"""`tidegate scaling`: how many backends each pool should have, and why."""

from gateway.cli.admin_client import API
from gateway.cli.connection import GatewayOptions
from gateway.cli.printing import OutputOptions

_COLUMNS = ("pool", "present", "up", "wanted", "busy", "forecast", "why")


def scaling(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print how many backends each pool has, how many are recommended, and why."""
    pools = gateway.api().read(f"{API}/scaling")["pools"]
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
    predicts = any(pool["forecast_why"] for pool in pools)
    output.show(rows, _COLUMNS if predicts else [name for name in _COLUMNS if name != "forecast"], pools)


def _why(why: str, forecast: str) -> str:
    """Both reasons, where the forecast is not the one that counts."""
    return why if not forecast or why.startswith(forecast) else f"{why}; {forecast}"
