"""The dashboard of the engines: their load, their caches, what the gateway knows of them, their cost and their GPUs."""

from typing import Final

from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold, Unit, quantile

BACKEND: Final = "{{pool}} {{backend}}"
EXPORTER: Final = "Prometheus reads the DCGM exporter of NVIDIA, with the label backend"


def _gauge(title: str, unit: Unit, description: str, family: str) -> Panel:
    """A line for each backend of the chosen pools."""
    return Panel(title, description, (Query(f'{family}{{pool=~"$pool"}}', BACKEND),), unit)


def _of_pool(family: str, legend: str = "") -> Query:
    """A line for each pool and role of its engines. Gateways see the same engines, so the highest of them counts."""
    whole = f'label_replace(max by (pool, role) ({family}{{pool=~"$pool"}}), "role", "", "role", "both")'  # most pools have no roles
    return Query(whole, f"{{{{pool}}}} {{{{role}}}} {legend}".strip())


FLEET: Final = Dashboard(
    "tidegate-fleet",
    "Tidegate: fleet",
    "Every engine as the gateway sees it. Why one is out: tidegate backend list.",
    (
        Row(
            "State",
            (
                Panel(
                    "Engines that take requests",
                    "Yes where every worker may use the engine; tidegate backend list says why not.",
                    (Query('tidegate_backend_up{pool=~"$pool"}', BACKEND),),
                    "yes or no",
                    "bars",
                    (Threshold(1, is_bad=False),),
                    most=1,
                ),
                Panel(
                    "Circuit breakers",
                    "0 closed, 1 half open, 2 open: the worst of each engine's breakers in any worker.",
                    (Query('tidegate_backend_breaker_state{pool=~"$pool"}', BACKEND),),
                    "count",
                    "bars",
                    (Threshold(1, is_bad=False), Threshold(2)),
                    most=2,
                ),
                _gauge(
                    "Age of what engines report",
                    "seconds",
                    "Above two seconds an engine is slow to answer, or gone.",
                    "tidegate_backend_signals_age_seconds",
                ),
                Panel(
                    "Required signals that are missing",
                    "Above zero, placing and limits know less than they need (docs/reference/engines.md).",
                    (Query('tidegate_backend_signals_missing{pool=~"$pool"}', BACKEND),),
                    "count",
                    "bars",
                    (Threshold(1),),
                ),
                Panel(
                    "Sources of backends",
                    "Yes where every worker can read the source; else its last good answer stays in force.",
                    (Query("tidegate_discovery_source_up", "{{pool}} {{source}}"),),
                    "yes or no",
                    "bars",
                    (Threshold(1, is_bad=False),),
                    most=1,
                ),
            ),
        ),
        Row(
            "Scaling",
            (
                Panel(
                    "Engines and engines wanted",
                    "Backends that do not drain, those that start or are down counted, and the recommendation where the pool has a section "
                    "scale, the need that is forecast with scale.predict, and the requests that wait for the first one of a pool that may "
                    "have none. Why: tidegate scaling.",
                    (
                        _of_pool("tidegate_pool_backends", "there"),
                        _of_pool("tidegate_pool_wanted_backends", "wanted"),
                        _of_pool("tidegate_pool_forecast_backends", "forecast"),
                        _of_pool("tidegate_pool_held_requests", "requests held"),
                    ),
                    "count",
                ),
                Panel(
                    "Prompt tokens that wait for each engine",
                    "Uncached ones, in engines and in the gateway: it rises before callers notice.",
                    (_of_pool("tidegate_pool_queue_tokens_per_backend"),),
                    "count",
                ),
                Panel(
                    "Predicted time to the first token",
                    "What 95 of 100 requests are predicted not to exceed.",
                    (_of_pool("tidegate_pool_predicted_ttft_p95_seconds"),),
                    "seconds",
                ),
                Panel(
                    "KV cache and time for prompts",
                    "What running and waiting requests take of the KV cache, above 1 some wait for memory; and the share of the last "
                    "minute that engines computed prompts for.",
                    (
                        _of_pool("tidegate_pool_kv_pressure_ratio", "KV cache"),
                        _of_pool("tidegate_pool_prefill_busy_ratio", "prompts"),
                    ),
                    "ratio",
                    thresholds=(Threshold(0.8, is_bad=False), Threshold(1.0)),
                ),
                Panel(
                    "Promises missed by pools",
                    "Share of the last minute's requests; above a twentieth the recommendation adds an engine.",
                    (_of_pool("tidegate_pool_goodput_deficit_ratio"),),
                    "ratio",
                    thresholds=(Threshold(0.05),),
                    most=1,
                    empty_until="a policy makes promises (ttft_slo_s, tpot_slo_s)",
                ),
            ),
        ),
        Row(
            "Load",
            (
                _gauge(
                    "Requests on the engine", "count", "Requests of this gateway on each engine.", "tidegate_backend_in_flight_requests"
                ),
                _gauge("Batch", "count", "Sequences in the engine's batch, as it reports.", "tidegate_backend_running_requests"),
                _gauge(
                    "Engine's own queue",
                    "count",
                    "Above zero for long, the concurrency limit is too high.",
                    "tidegate_backend_waiting_requests",
                ),
                Panel(
                    "Concurrency limit",
                    "Requests that the engine is taken to bear, as estimated while it runs, and the part of this gateway.",
                    (
                        Query('tidegate_backend_limit_requests{pool=~"$pool"}', f"{BACKEND} limit"),
                        Query('tidegate_backend_limit_own_requests{pool=~"$pool"}', f"{BACKEND} own"),
                    ),
                    "count",
                    empty_until="the settings have concurrency limits (limit)",
                ),
                Panel(
                    "KV cache in use",
                    "Share of the engine's KV cache that is taken, as it reports. Near 1 the engine preempts its own requests.",
                    (Query('tidegate_backend_kv_usage_ratio{pool=~"$pool"}', BACKEND),),
                    "ratio",
                    thresholds=(Threshold(0.85, is_bad=False), Threshold(0.95)),
                    most=1,
                ),
                Panel(
                    "Requests sent",
                    "Attempts, with those that failed over to another engine.",
                    (Query('sum by (pool, backend) (rate(tidegate_upstream_attempts_total{pool=~"$pool"}[$__rate_interval]))', BACKEND),),
                    "requests/s",
                    "stacked",
                ),
                Panel(
                    "Tokens by engine",
                    "Prompt and completion tokens that each engine reported.",
                    (
                        Query(
                            'sum by (backend, type) (rate(tidegate_backend_tokens_total{pool=~"$pool", type!="cached"}[$__rate_interval]))',
                            "{{backend}} {{type}}",
                        ),
                    ),
                    "tokens/s",
                    "stacked",
                ),
                Panel(
                    "Prefill rate",
                    "Prompt tokens that the engine computes per second of prefill, measured between two readings.",
                    (Query('tidegate_backend_prefill_tokens_per_second{pool=~"$pool"}', BACKEND),),
                    "tokens/s",
                    empty_until="an engine reports its prefill time",
                ),
            ),
        ),
        Row(
            "Routing and caches",
            (
                Panel(
                    "Prompt tokens found in the cache",
                    "Share of the prompt tokens that each engine found cached, by its own word.",
                    (
                        Query(
                            'sum by (pool, backend) (rate(tidegate_backend_tokens_total{pool=~"$pool", type="cached"}[$__rate_interval]))'
                            " / sum by (pool, backend) "
                            '(rate(tidegate_backend_tokens_total{pool=~"$pool", type="prompt"}[$__rate_interval]))',
                            BACKEND,
                        ),
                    ),
                    "ratio",
                    most=1,
                ),
                Panel(
                    "Cached tokens, predicted and real",
                    "What the prefix index predicted, and what engines reported. Far apart: salt, tokenizer or template differ.",
                    (Query('sum by (said_by) (rate(tidegate_prefix_tokens_total{pool=~"$pool"}[$__rate_interval]))', "{{said_by}}"),),
                    "tokens/s",
                    empty_until="a prompt begins with what an engine has cached",
                ),
                Panel(
                    "Trust in the prefix index",
                    "Share of what the index says of an engine's cache that is believed.",
                    (Query('tidegate_backend_index_trust_ratio{pool=~"$pool"}', BACKEND),),
                    "ratio",
                    most=1,
                ),
                Panel(
                    "First token, real against predicted",
                    "The median and 90th percentile of measured ÷ predicted time to the first token. 1 is right; above 1 it came later.",
                    (
                        Query(
                            quantile(0.5, "tidegate_ttft_prediction_ratio", where='pool=~"$pool"'),
                            "p50",
                        ),
                        Query(
                            quantile(0.9, "tidegate_ttft_prediction_ratio", where='pool=~"$pool"'),
                            "p90",
                        ),
                    ),
                    "times",
                    empty_until="the speed of an engine is known from a streamed answer",
                ),
                Panel(
                    "What decided between engines",
                    "Routing decisions by what decided: cost, session, match, fewest requests and so on (docs/explanation/routing.md).",
                    (Query("sum by (by) (rate(tidegate_route_decisions_total[$__rate_interval]))", "{{by}}"),),
                    "per second",
                    "stacked",
                ),
                Panel(
                    "Time of a decision",
                    "Reading the prompt, looking it up and deciding.",
                    (
                        Query(quantile(0.5, "tidegate_route_decision_seconds"), "p50"),
                        Query(quantile(0.99, "tidegate_route_decision_seconds"), "p99"),
                    ),
                    "seconds",
                ),
                Panel(
                    "KV events trusted",
                    "Yes where every worker has an exact copy of the engine's cache index.",
                    (Query('tidegate_backend_kv_events_trusted{pool=~"$pool"}', BACKEND),),
                    "yes or no",
                    "bars",
                    (Threshold(1, is_bad=False),),
                    most=1,
                    empty_until="a pool has KV events (kv_events)",
                ),
                Panel(
                    "Adapters",
                    "Loads and unloads of adapters. Unloads at the rate of loads mean that slots are too few.",
                    (Query("sum by (call) (rate(tidegate_lora_calls_total[$__rate_interval]))", "{{call}}"),),
                    "per second",
                    empty_until="the gateway loads an adapter",
                ),
            ),
        ),
        Row(
            "Cost and GPUs",
            (
                Panel(
                    "Price of the engines",
                    "Dollars an hour, where the settings have a price of the engine's hardware.",
                    (Query('sum by (pool) (max by (pool, backend) (tidegate_backend_usd_per_hour{pool=~"$pool"}))', "{{pool}}"),),
                    "usd/h",
                    empty_until="a pool has a price of its hardware",
                ),
                Panel(
                    "Cost of a million tokens",
                    "Price of the engines ÷ their completion tokens, beside the list price that callers paid for each.",
                    (
                        Query(
                            'sum(max by (pool, backend) (tidegate_backend_usd_per_hour{pool=~"$pool"})) / '
                            '(sum(rate(tidegate_backend_tokens_total{pool=~"$pool", type="completion"}[$__rate_interval])) * 3600) * 1e6',
                            "engines",
                        ),
                        Query(
                            "sum(rate(tidegate_cost_usd_total[$__rate_interval])) / "
                            'sum(rate(tidegate_tokens_total{type="completion"}[$__rate_interval])) * 1e6',
                            "list price",
                        ),
                    ),
                    "usd",
                    empty_until="a model has a price (tidegate price set)",
                ),
                Panel(
                    "GPU busy",
                    "Share of the time in which anything ran on the GPU.",
                    (Query("DCGM_FI_DEV_GPU_UTIL / 100", "{{backend}} {{gpu}}"),),
                    "ratio",
                    most=1,
                    empty_until=EXPORTER,
                ),
                Panel(
                    "Compute or memory?",
                    "Share of cycles in which tensor cores worked, and memory did. Memory binds decoding, compute binds prefill.",
                    (
                        Query("avg by (backend) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)", "{{backend}} tensor"),
                        Query("avg by (backend) (DCGM_FI_PROF_DRAM_ACTIVE)", "{{backend}} memory"),
                    ),
                    "ratio",
                    most=1,
                    empty_until=EXPORTER,
                ),
                Panel(
                    "GPU memory in use",
                    "Bytes of the GPU's memory that are taken; engines take their share when they start.",
                    (Query("sum by (backend) (DCGM_FI_DEV_FB_USED) * 1024 * 1024", "{{backend}}"),),
                    "bytes",
                    empty_until=EXPORTER,
                ),
                Panel(
                    "GPU power",
                    "Watts of each engine's GPUs together.",
                    (Query("sum by (backend) (DCGM_FI_DEV_POWER_USAGE)", "{{backend}}"),),
                    "watts",
                    empty_until=EXPORTER,
                ),
                Panel(
                    "Completion tokens per joule",
                    "Tokens that the engine generated ÷ the power of its GPUs.",
                    (
                        Query(
                            'sum by (backend) (rate(tidegate_backend_tokens_total{type="completion"}[$__rate_interval])) / '
                            "on (backend) sum by (backend) (DCGM_FI_DEV_POWER_USAGE)",
                            "{{backend}}",
                        ),
                    ),
                    "tokens/J",
                    empty_until=EXPORTER,
                ),
            ),
        ),
    ),
)
