"""The dashboards: `DASHBOARDS`, and the one to begin with. Each of the others is a file of its own beside this one."""

from typing import Final

from gateway.dashboards.answers_board import ANSWERS
from gateway.dashboards.fleet_board import FLEET
from gateway.dashboards.gateway_board import GATEWAY
from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold, quantile
from gateway.dashboards.tenants_board import TENANTS

_GOOD: Final = 'sum(rate(tidegate_class_requests_total{result="ok"}[$__rate_interval]))'
_CLASSED: Final = 'sum(rate(tidegate_class_requests_total{result!="caller"}[$__rate_interval]))'


def _quantile(of: str, share: float, by: str, family: str) -> Query:
    return Query(quantile(share, family, by, 'model=~"$model"'), f"{of} {{{{{by}}}}}")


REQUESTS: Final = Row(
    "Requests",
    (
        Panel(
            "Requests",
            "Finished requests by whose side it was: ok, or a failure of the caller (refused by a limit, a bad request), of the gateway "
            "(overloaded, out of time) or of an engine. Only the last two are our fault.",
            (Query("sum by (result) (rate(tidegate_class_requests_total[$__rate_interval]))", "{{result}}"),),
            "requests/s",
            "stacked",
        ),
        Panel(
            "Availability",
            "Share of the requests that were answered, without those that failed by the caller's own fault.",
            (Query(f"{_GOOD} / {_CLASSED}"),),
            "ratio",
            "value",
            (Threshold(0.99, is_bad=False), Threshold(0.999, is_bad=False)),
            most=1,
        ),
        Panel(
            "Failures by kind",
            "Requests that were not answered, by the kind of fault; docs/reference/faults.md says what each means.",
            (Query('sum by (outcome) (rate(tidegate_requests_total{outcome!="ok", model=~"$model"}[$__rate_interval]))', "{{outcome}}"),),
            "requests/s",
            empty_until="a request fails",
        ),
        Panel(
            "Requests by model",
            "Finished requests, however they ended.",
            (Query('sum by (model) (rate(tidegate_requests_total{model=~"$model"}[$__rate_interval]))', "{{model}}"),),
            "requests/s",
            "stacked",
        ),
        Panel(
            "In flight",
            "Requests that are begun and not finished, and how many of them wait for room on an engine.",
            (Query("sum(tidegate_in_flight_requests)", "in flight"), Query("sum(tidegate_queue_depth)", "waiting")),
            "count",
        ),
        Panel(
            "Open connections",
            "Connections of callers.",
            (Query("sum(tidegate_connections)", "connections"),),
            "count",
        ),
    ),
)

LATENCY: Final = Row(
    "What callers wait for",
    (
        Panel(
            "Time to the first token",
            "From the request's last byte to the first event of the answer: the wait that people notice. The queue is part of it.",
            (
                _quantile("p50", 0.5, "model", "tidegate_time_to_first_token_seconds"),
                _quantile("p95", 0.95, "model", "tidegate_time_to_first_token_seconds"),
                _quantile("p99", 0.99, "model", "tidegate_time_to_first_token_seconds"),
            ),
            "seconds",
        ),
        Panel(
            "Time per token",
            "Of each streamed answer the mean time between two tokens. It grows with an engine's batch.",
            (
                _quantile("p50", 0.5, "model", "tidegate_time_per_output_token_seconds"),
                _quantile("p95", 0.95, "model", "tidegate_time_per_output_token_seconds"),
            ),
            "seconds",
        ),
        Panel(
            "Longest gaps within answers",
            "The 99th percentile of the time between two events of a stream: pauses that a reader sees.",
            (_quantile("p99", 0.99, "model", "tidegate_inter_token_seconds"),),
            "seconds",
        ),
        Panel(
            "Duration",
            "From the request's head to the end of its answer. Long answers take long, so compare it with itself.",
            (
                _quantile("p50", 0.5, "model", "tidegate_request_duration_seconds"),
                _quantile("p95", 0.95, "model", "tidegate_request_duration_seconds"),
            ),
            "seconds",
        ),
        Panel(
            "Added by the gateway",
            "The gateway's own share of a request: from its last byte to the dispatch, and from the engine's first byte to its delivery.",
            (
                Query(quantile(0.5, "tidegate_overhead_seconds"), "p50"),
                Query(quantile(0.99, "tidegate_overhead_seconds"), "p99"),
            ),
            "seconds",
            thresholds=(Threshold(0.005, is_bad=False), Threshold(0.025)),
        ),
        Panel(
            "Promises kept",
            "Share of the streamed requests for which a promise of the tenant's policy was kept: ttft, tpot.",
            (
                Query(
                    'sum by (slo) (rate(tidegate_slo_requests_total{met="true", model=~"$model"}[$__rate_interval])) / '
                    'sum by (slo) (rate(tidegate_slo_requests_total{model=~"$model"}[$__rate_interval]))',
                    "{{slo}}",
                ),
            ),
            "ratio",
            most=1,
            empty_until="a policy makes promises (ttft_slo_s, tpot_slo_s)",
        ),
    ),
)

WORK: Final = Row(
    "Work done",
    (
        Panel(
            "Tokens",
            "Tokens that engines reported. Cached ones are part of the prompt's, reasoning ones of the completion's.",
            (Query('sum by (type) (rate(tidegate_tokens_total{model=~"$model"}[$__rate_interval]))', "{{type}}"),),
            "tokens/s",
        ),
        Panel(
            "Prompt tokens found in engines' caches",
            "Cached prompt tokens as a share of all. When it falls after a change, routing or prompts have changed.",
            (
                Query(
                    'sum(rate(tidegate_tokens_total{type="cached", model=~"$model"}[$__rate_interval])) / '
                    'sum(rate(tidegate_tokens_total{type="prompt", model=~"$model"}[$__rate_interval]))',
                    "cached",
                ),
            ),
            "ratio",
            most=1,
        ),
        Panel(
            "Goodput",
            "Completion tokens of requests for which every promise was kept, beside those of requests for which one was not.",
            (Query('sum by (met) (rate(tidegate_goodput_tokens_total{model=~"$model"}[$__rate_interval]))', "promises kept: {{met}}"),),
            "tokens/s",
            "stacked",
            empty_until="a policy makes promises (ttft_slo_s, tpot_slo_s)",
        ),
        Panel(
            "Cost by model",
            "Dollars an hour at list prices.",
            (Query('sum by (model) (rate(tidegate_cost_usd_total{model=~"$model"}[$__rate_interval])) * 3600', "{{model}}"),),
            "usd/h",
            "stacked",
            empty_until="a model has a price (tidegate price set)",
        ),
    ),
)

OVERLOAD: Final = Row(
    "Overload",
    (
        Panel(
            "Requests that wait",
            "Requests that wait for room on an engine, by class. Above zero for long, engines are too few.",
            (Query('sum by (pool, class) (tidegate_queue_depth{pool=~"$pool"})', "{{pool}} {{class}}"),),
            "count",
            "stacked",
        ),
        Panel(
            "Queue wait",
            "The 95th percentile of the wait of requests that got room, by class.",
            (
                Query(
                    quantile(0.95, "tidegate_queue_wait_seconds", "class", 'pool=~"$pool"'),
                    "{{class}}",
                ),
            ),
            "seconds",
            empty_until="a request waits for room on an engine",
        ),
        Panel(
            "Refused by the queue",
            "Requests that left the queue without an engine or did not enter it, by reason.",
            (Query('sum by (reason) (rate(tidegate_queue_refused_total{pool=~"$pool"}[$__rate_interval]))', "{{reason}}"),),
            "requests/s",
            empty_until="the queue refuses a request",
        ),
        Panel(
            "Degraded, fallen back, hedged, continued, pulled back",
            "What the gateway did so that a request could be answered: steps of degradation, other models, a second engine, an engine that "
            "goes on with the stream of a lost one, preemption.",
            (
                Query('sum by (step) (rate(tidegate_degraded_total{model=~"$model"}[$__rate_interval]))', "degraded: {{step}}"),
                Query("sum by (from, to) (rate(tidegate_fallbacks_total[$__rate_interval]))", "{{from}} to {{to}}"),
                Query('sum by (result) (rate(tidegate_hedges_total{pool=~"$pool"}[$__rate_interval]))', "hedge {{result}}"),
                Query('sum by (result) (rate(tidegate_streams_continued_total{pool=~"$pool"}[$__rate_interval]))', "continued {{result}}"),
                Query('sum by (class) (rate(tidegate_queue_pulled_back_total{pool=~"$pool"}[$__rate_interval]))', "pulled back: {{class}}"),
            ),
            "requests/s",
            empty_until="a request is degraded, hedged, continued, preempted or answered by another model",
        ),
        Panel(
            "Drain rate of the queue",
            "Tokens of work that the queue lets through while requests wait; the predicted waits come from it.",
            (Query('sum by (pool) (tidegate_queue_drain_tokens_per_second{pool=~"$pool"})', "{{pool}}"),),
            "tokens/s",
            empty_until="a request waits for room on an engine",
        ),
    ),
)

OVERVIEW: Final = Dashboard(
    "tidegate-overview",
    "Tidegate: overview",
    "Are callers served, how long do they wait, and what does it cost? Begin here.",
    (REQUESTS, LATENCY, WORK, OVERLOAD),
)

DASHBOARDS: Final = (OVERVIEW, FLEET, TENANTS, ANSWERS, GATEWAY)
