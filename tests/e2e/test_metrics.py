"""Metrics of real processes: what a few requests leave on the page, beside what every family says by itself."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from backends.simengine import SimEngine, SimSettings
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tests.e2e.test_serve import Served, ask, serving
from tests.replicas import Tenancy
from tests.timing import HANG_S, hang_s

SETTINGS = """
data: {{bind: "127.0.0.1:0"}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
metrics: {{language_share: 1.0}}
pools:
  - name: chat
    model: sim
    dialect: vllm
    usd_per_hour: 3.5
    backends:
      - {{id: e0, url: "{url}", usd_per_hour: 2.25}}
      - {{id: e1, url: "{url}/"{backend}}}
    scale: {{max: 3}}
"""
POLICY = 'tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\nttft_slo_s: 60\n'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ACCEPT = {"accept": "application/openmetrics-text; version=1.0.0"}

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scraped(served: Served, client: httpx.AsyncClient) -> tuple[Samples, str]:
    text = (await client.get(served.admin + "/metrics", headers=ACCEPT)).text
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}, text


async def when(served: Served, client: httpx.AsyncClient, seen: Callable[[Samples], bool]) -> tuple[Samples, str]:
    """The page as soon as it is so."""
    async with asyncio.timeout(hang_s()):
        while True:
            samples, text = await scraped(served, client)
            if seen(samples):
                return samples, text
            await asyncio.sleep(0.1)


async def test_a_few_requests_are_seen_in_every_way(tmp_path: Path) -> None:
    tenancy = Tenancy(
        (),
        limits=[
            Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.DAY, 10),
            Limit(Scope(Level.TENANT, "acme"), Meter.CONCURRENT_REQUESTS, Window.NOW, 4),
            Limit(Scope(Level.MODEL, "sim"), Meter.REQUESTS, Window.DAY, 20),
            Limit(Scope(Level.GLOBAL, ""), Meter.CONCURRENT_REQUESTS, Window.NOW, 8),
        ],
        prices=[Price("p", "sim", ANY_REVISION, 0.0, TokenRates(output=10**12))],
    )
    engine = SimEngine(SimSettings(models=("sim",), speed=1000))
    async with engine, serving(tmp_path, engine.url, workers=2, settings=SETTINGS, policy=POLICY, tenancy=tenancy) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            headers = {**served.headers, "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
            body = ask(stream=True, stream_options={"include_usage": True}, logprobs=True, max_tokens=40)
            for _ in range(5):
                assert (await client.post(f"{served.url}/v1/chat/completions", json=body, headers=headers)).status_code == 200
            surprised = ("tidegate_answer_surprisal_nats_count", (("model", "sim"), ("pool", "chat")))
            budget = ("tidegate_budget_headroom_ratio", (("tenant", "acme"),))
            lags = [("tidegate_loop_lag_seconds_count", (("worker", worker),)) for worker in ("0", "1")]
            samples, text = await when(
                served, client, lambda seen: seen.get(surprised) == 5 and seen.get(budget) == 0.5 and all(map(seen.get, lags))
            )
    gen_ai = (
        ("gen_ai_operation_name", "chat"),
        ("gen_ai_provider_name", "vllm"),
        ("gen_ai_request_model", "sim"),
        ("gen_ai_response_model", "sim"),
    )
    assert samples["gen_ai_server_time_to_first_token_seconds_count", gen_ai] == 5
    assert samples["gen_ai_client_token_usage_count", (*gen_ai, ("gen_ai_token_type", "output"))] == 5
    assert f'trace_id="{TRACE}"' in text
    chat = (("pool", "chat"), ("role", "both"))
    assert samples["tidegate_pool_wanted_backends", chat] == samples["tidegate_pool_backends", chat] == 2
    assert samples["tidegate_pool_queue_tokens_per_backend", chat] == 0 <= samples["tidegate_pool_kv_pressure_ratio", chat] < 1
    assert samples["tidegate_limit_headroom_ratio", (("tenant", "acme"),)] == 1
    assert samples["tidegate_shared_limit_headroom_ratio", (("level", "global"), ("name", ""))] == 1
    assert samples["tidegate_shared_budget_headroom_ratio", (("level", "model"), ("name", "sim"))] == 0.75
    of_acme = (("model", "sim"), ("tenant", "acme"))
    assert samples["tidegate_cost_usd_total", of_acme] == samples["tidegate_cost_nanousd_total", of_acme] / 1e9 > 0
    assert samples["tidegate_goodput_requests_total", (("met", "true"), *of_acme)] == 5
    assert samples["tidegate_goodput_tokens_total", (("met", "true"), *of_acme)] == 200
    languages = {labels: value for (name, labels), value in samples.items() if name == "tidegate_answer_languages_total"}
    assert sum(languages.values()) == 5
    prices = {dict(labels)["backend"]: value for (name, labels), value in samples.items() if name == "tidegate_backend_usd_per_hour"}
    assert prices == {"e0": 2.25, "e1": 3.5}
    tokens = sum(
        value
        for (name, labels), value in samples.items()
        if name == "tidegate_backend_tokens_total" and dict(labels)["type"] == "completion"
    )
    assert tokens == 200
    predicted = sum(value for (name, _), value in samples.items() if name == "tidegate_ttft_prediction_ratio_count")
    assert predicted == 5
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "threads", "start_time_seconds"):
        processes = {dict(labels)["process"]: value for (found, labels), value in samples.items() if found == f"tidegate_process_{name}"}
        assert {"supervisor", "admin", "worker-0", "worker-1", "store"} == set(processes), name
        # the kernel counts processor time in hundredths of a second, and the store needed less
        assert all(value > 0 for process, value in processes.items() if process != "store"), (name, processes)
    for worker in ("0", "1"):
        assert 0 < samples["tidegate_scrape_slice_seconds", (("worker", worker),)] < 5
