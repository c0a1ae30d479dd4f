"""The dashboard of the tenants: what they use, what it costs, and what is left of their limits and budgets."""

from typing import Final

from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold

MOST: Final = 15
"""Tenants in one panel, those with the most; a chart with more lines cannot be read."""


def _by_tenant(expr: str) -> Query:
    return Query(f"topk({MOST}, {expr})", "{{tenant}}")


TENANTS: Final = Dashboard(
    "tidegate-tenants",
    "Tidegate: tenants and cost",
    f"Who uses what, what it costs, and what is left. A panel shows the {MOST} tenants with the most.",
    (
        Row(
            "Use",
            (
                Panel(
                    "Tokens by tenant",
                    "Prompt and completion tokens together, as engines reported them.",
                    (
                        _by_tenant(
                            'sum by (tenant) (rate(tidegate_tokens_total{type=~"prompt|completion", tenant=~"$tenant"}[$__rate_interval]))'
                        ),
                    ),
                    "tokens/s",
                    "stacked",
                ),
                Panel(
                    "Cost by tenant",
                    "Dollars an hour at list prices.",
                    (_by_tenant('sum by (tenant) (rate(tidegate_cost_usd_total{tenant=~"$tenant"}[$__rate_interval])) * 3600'),),
                    "usd/h",
                    "stacked",
                    empty_until="a model has a price (tidegate price set)",
                ),
                Panel(
                    "Cost of the last day",
                    "Dollars by tenant, over 24 hours. The ledger (tidegate usage) is what bills are made of.",
                    (_by_tenant('sum by (tenant) (increase(tidegate_cost_usd_total{tenant=~"$tenant"}[1d]))'),),
                    "usd",
                    "bars",
                    empty_until="a model has a price (tidegate price set)",
                ),
                Panel(
                    "Share of the prompt found cached",
                    "By tenant; a low share with long prompts is often a changing text at their beginning.",
                    (
                        _by_tenant(
                            'sum by (tenant) (rate(tidegate_tokens_total{type="cached", tenant=~"$tenant"}[$__rate_interval])) / '
                            'sum by (tenant) (rate(tidegate_tokens_total{type="prompt", tenant=~"$tenant"}[$__rate_interval]))'
                        ),
                    ),
                    "ratio",
                    most=1,
                ),
                Panel(
                    "Requests with every promise kept",
                    "Share of a tenant's requests for which all that its policy promises was so.",
                    (
                        _by_tenant(
                            'sum by (tenant) (rate(tidegate_goodput_requests_total{met="true", tenant=~"$tenant"}[$__rate_interval])) / '
                            'sum by (tenant) (rate(tidegate_goodput_requests_total{tenant=~"$tenant"}[$__rate_interval]))'
                        ),
                    ),
                    "ratio",
                    most=1,
                    empty_until="a policy makes promises (ttft_slo_s, tpot_slo_s)",
                ),
                Panel(
                    "Sound",
                    "Seconds of recordings and speech per second, by tenant.",
                    (_by_tenant('sum by (tenant) (rate(tidegate_audio_seconds_total{tenant=~"$tenant"}[$__rate_interval]))'),),
                    "per second",
                    empty_until="a request has sound",
                ),
            ),
        ),
        Row(
            "Limits",
            (
                Panel(
                    "Least left of any rate limit",
                    "1 is unused, 0 is refused: of all rates and concurrent requests of a tenant the one of which the least is left.",
                    (Query(f'bottomk({MOST}, tidegate_limit_headroom_ratio{{tenant=~"$tenant"}})', "{{tenant}}"),),
                    "ratio",
                    most=1,
                    empty_until="a tenant has a limit",
                ),
                Panel(
                    "Least left of any budget",
                    "The same for limits over days, weeks, months, rolling windows and for ever.",
                    (Query(f'bottomk({MOST}, tidegate_budget_headroom_ratio{{tenant=~"$tenant"}})', "{{tenant}}"),),
                    "ratio",
                    most=1,
                    empty_until="a tenant has a budget",
                ),
                Panel(
                    "Least left of shared rate limits",
                    "The same for limits of organisations, of models and of the gateway, which tenants share.",
                    (Query(f"bottomk({MOST}, tidegate_shared_limit_headroom_ratio)", "{{level}} {{name}}"),),
                    "ratio",
                    most=1,
                    empty_until="an organisation, a model or the gateway has a limit",
                ),
                Panel(
                    "Least left of shared budgets",
                    "The same for their limits over days, weeks, months, rolling windows and for ever.",
                    (Query(f"bottomk({MOST}, tidegate_shared_budget_headroom_ratio)", "{{level}} {{name}}"),),
                    "ratio",
                    most=1,
                    empty_until="an organisation, a model or the gateway has a budget",
                ),
                Panel(
                    "Refused by limits",
                    "Requests that a limit refused, by the kind of limit.",
                    (
                        Query(
                            "sum by (outcome) (rate(tidegate_requests_total"
                            '{outcome=~"request_limit|token_limit|concurrency_limit|quota_spent|address_limit|exceeds_limit"}[$__rate_interval]))',
                            "{{outcome}}",
                        ),
                    ),
                    "requests/s",
                    empty_until="a limit refuses a request",
                ),
                Panel(
                    "Soft limits crossed",
                    "Requests that crossed a soft threshold and were answered with a warning.",
                    (_by_tenant('sum by (tenant) (rate(tidegate_soft_limits_crossed_total{tenant=~"$tenant"}[$__rate_interval]))'),),
                    "requests/s",
                    empty_until="a request crosses a soft limit",
                ),
                Panel(
                    "Messages about budgets",
                    "Messages that were sent, posts that failed, and messages that were given up.",
                    (Query("sum by (result) (rate(tidegate_budget_alerts_total[$__rate_interval]))", "{{result}}"),),
                    "per second",
                    thresholds=(),
                    empty_until="the settings have a webhook for budgets (alerts)",
                ),
                Panel(
                    "Limits decided alone",
                    "Yes while a worker decides on limits without the shared counters.",
                    (Query("max(tidegate_limits_degraded)", "degraded"),),
                    "yes or no",
                    "value",
                    (Threshold(1),),
                    most=1,
                    empty_until="a tenant has a limit",
                ),
            ),
        ),
    ),
)
