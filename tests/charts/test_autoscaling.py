"""Autoscaling in both charts: what the schemas of KEDA and of Kubernetes take, what the queries say by the real PromQL, what is refused,
and that an upgrade leaves the number of engines as it is."""

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.telemetry.exposition import GAUGES
from gateway.telemetry.scaling_gauges import SCALING_GAUGES
from tests.charts.helm import BIN, CHARTS, Document, example, of, pods, problems, refusal, rendered

pytestmark = pytest.mark.helm

PROMETHEUS = {"address": "http://prometheus.monitoring.svc:9090"}
HELD = "tidegate_pool_held_requests"


def scaled(**autoscaling: Any) -> dict[str, Any]:
    """Values of one pool that scales."""
    return {"pools": {"chat": {"launch": "vllm-8b", "autoscaling": {"by": "keda", "max": 8, "prometheus": PROMETHEUS, **autoscaling}}}}


EVERY = {
    "the recommendation": scaled(),
    "every signal": scaled(signals=[{"name": name} for name in ("recommendation", "queue", "ttft", "kv", "deficit")]),
    "a forecast beside other signals": scaled(signals=[{"name": "queue"}, {"name": "forecast"}]),
    "set hours": scaled(schedule=[{"start": "50 8 * * 1-5", "end": "0 18 * * 1-5", "timezone": "Europe/Berlin", "engines": 6}]),
    "scale to zero": scaled(toZero={"enabled": True}),
    "standby and fallback": scaled(standby=2, fallback={"replicas": 3}),
    "a Prometheus with sign-in": scaled(
        prometheus={**PROMETHEUS, "labels": {"namespace": "llm"}, "authentication": {"name": "prometheus", "modes": "bearer"}}
    ),
    "a HorizontalPodAutoscaler": scaled(by="hpa", signals=[{"name": "recommendation"}, {"name": "queue", "target": 8000}]),
}


@pytest.mark.parametrize("values", EVERY.values(), ids=EVERY.keys())
def test_what_scales_a_pool_meets_the_schemas(values: dict[str, Any]) -> None:
    documents = rendered("engines", **values)
    assert problems(documents) == []
    kind = "HorizontalPodAutoscaler" if values["pools"]["chat"]["autoscaling"]["by"] == "hpa" else "ScaledObject"
    spec = of(documents, kind)["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "engines-chat"}
    assert of(documents, "StatefulSet")["metadata"]["name"] == "engines-chat"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec.update(minReplicas=1),
        lambda spec: spec.pop("triggers"),
        lambda spec: spec["triggers"][0].pop("metadata"),
        lambda spec: spec["triggers"][0]["metadata"].update(threshold=1),
        lambda spec: spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"].update(window=1),
        lambda spec: spec.update(fallback={"replicas": 2}),
    ],
)
def test_the_schema_of_keda_objects_to_a_mistake(spoil: Any) -> None:
    document = yaml.safe_load(yaml.safe_dump(of(rendered("engines", **scaled()), "ScaledObject")))
    spoil(document["spec"])
    assert problems([document]) != []


def test_without_autoscaling_nothing_of_it_is_rendered() -> None:
    kinds = {d["kind"] for d in rendered("engines", pools={"chat": {"launch": "vllm-8b"}})}
    assert not kinds & {"ScaledObject", "HorizontalPodAutoscaler", "Deployment", "PriorityClass", "ServiceMonitor"}


def test_engines_leave_one_by_one_after_a_pause() -> None:
    """The recommendation has waited already; other signals settle for five minutes."""
    for signals, settled in (([{"name": "recommendation"}], 0), ([{"name": "queue"}], 300)):
        spec = of(rendered("engines", **scaled(signals=signals)), "ScaledObject")["spec"]
        down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]
        assert (down["stabilizationWindowSeconds"], down["selectPolicy"]) == (settled, "Min")
    own = scaled(by="hpa", scaleIn={"pods": 2, "periodSeconds": 600, "stabilizationSeconds": 900})
    down = of(rendered("engines", **own), "HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 2, "periodSeconds": 600}]
    assert down["stabilizationWindowSeconds"] == 900


def test_an_engine_that_leaves_may_end_what_it_runs() -> None:
    """The engine drains for `grace_s` after SIGTERM, which comes after the time to leave the Service; no kubelet kills it before."""
    values = scaled()
    values["pools"]["chat"]["parameters"] = {"grace_s": 700}
    documents = rendered("engines", **values)
    pod = pods(documents)["StatefulSet/engines-chat"]
    container = pod["containers"][0]
    slept = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert container["args"][container["args"].index("--shutdown-timeout") + 1] == "700"
    assert pod["terminationGracePeriodSeconds"] == slept + 700 + 15
    assert of(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_a_pool_that_scales_to_zero_wakes_for_held_requests() -> None:
    spec = of(rendered("engines", **scaled(toZero={"enabled": True, "afterSeconds": 600}, min=2)), "ScaledObject")["spec"]
    assert (spec["idleReplicaCount"], spec["minReplicaCount"], spec["cooldownPeriod"]) == (0, 2, 600)
    assert [trigger["name"] for trigger in spec["triggers"]] == ["recommendation", "held"]
    for trigger in spec["triggers"]:
        assert trigger["metadata"]["activationThreshold"] == "0"
    held = spec["triggers"][1]
    assert held["metadata"]["query"] == f'clamp_max(sum({HELD}{{pool="chat", role="both"}}), 1) or vector(0)'
    assert (held["metricType"], held["metadata"]["threshold"]) == ("AverageValue", "1"), "it wakes one engine, and asks for no more"
    kept = of(rendered("engines", **scaled()), "ScaledObject")["spec"]
    assert "idleReplicaCount" not in kept


def test_a_prometheus_that_says_nothing_is_not_taken_for_no_load() -> None:
    for values in list(EVERY.values())[:-1]:
        for trigger in of(rendered("engines", **values), "ScaledObject")["spec"]["triggers"]:
            assert trigger["type"] == "cron" or trigger["metadata"]["ignoreNullValues"] == "false"
    fallback = of(rendered("engines", **scaled(fallback={"replicas": 3})), "ScaledObject")["spec"]["fallback"]
    assert fallback == {"failureThreshold": 4, "replicas": 3}


def test_every_signal_is_a_gauge_that_the_gateway_has() -> None:
    metrics = []
    for names in (("recommendation", "queue", "ttft", "kv", "deficit"), ("queue", "forecast")):
        documents = rendered("engines", **scaled(by="hpa", signals=[{"name": name} for name in names]))
        metrics += [metric["external"] for metric in of(documents, "HorizontalPodAutoscaler")["spec"]["metrics"]]
    assert [metric["metric"]["name"] in SCALING_GAUGES for metric in metrics] == [True] * 7
    assert all(metric["metric"]["selector"] == {"matchLabels": {"pool": "chat", "role": "both"}} for metric in metrics)
    assert metrics[0]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert metrics[1]["target"] == {"type": "Value", "value": "4000"}
    assert metrics[-1]["target"] == {"type": "AverageValue", "averageValue": "1"}, "a forecast is a number of engines"


def test_engines_of_set_hours_are_kedas_cron_beside_the_recommendation() -> None:
    hours = {"start": "50 8 * * 1-5", "end": "0 18 * * 1-5", "engines": 6}
    spec = of(rendered("engines", **scaled(schedule=[hours])), "ScaledObject")["spec"]
    assert [trigger["type"] for trigger in spec["triggers"]] == ["prometheus", "cron"]
    asked = {"timezone": "UTC", "start": "50 8 * * 1-5", "end": "0 18 * * 1-5", "desiredReplicas": "6"}
    assert spec["triggers"][1] == {"type": "cron", "name": "schedule-0", "metadata": asked}


def test_the_queries_mean_what_is_meant(tmp_path: Path) -> None:
    """By promtool: two gateways, of which the higher recommendation counts; no requests; no engines; no gateway."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: make observe-tools")
    signals = [{"name": name} for name in ("recommendation", "queue", "ttft", "kv", "deficit")]
    both = [scaled(signals=signals, standby=1), scaled(toZero={"enabled": True}), scaled(signals=[{"name": "queue"}, {"name": "forecast"}])]
    queries = {
        trigger["name"] + ("+1" if at == 0 and trigger["name"] == "recommendation" else ""): trigger["metadata"]["query"]
        for at, values in enumerate(both)
        for trigger in of(rendered("engines", **values), "ScaledObject")["spec"]["triggers"]
    }

    def series(gateway: str, **gauges: float) -> list[dict[str, str]]:
        labels = f'{{pool="chat", role="both", instance="{gateway}"}}'
        return [{"series": f"tidegate_pool_{name}{labels}", "values": f"{value}x5"} for name, value in gauges.items()]

    cases = {
        "two gateways": (
            [
                *series("a", wanted_backends=3, queue_tokens_per_backend=100, goodput_deficit_ratio=0.25, held_requests=2),
                *series("b", wanted_backends=5, queue_tokens_per_backend=900, predicted_ttft_p95_seconds=4, kv_pressure_ratio=0.5),
                *series("b", forecast_backends=4.5),
            ],
            {"forecast": 4.5, "recommendation": 5, "recommendation+1": 6, "queue": 900, "ttft": 4, "kv": 0.5, "deficit": 0.25, "held": 1},
        ),
        "no requests": (
            series("a", wanted_backends=1, queue_tokens_per_backend=0, kv_pressure_ratio=0, held_requests=0),
            {"recommendation": 1, "recommendation+1": 2, "queue": 0, "ttft": 0, "kv": 0, "deficit": 0, "held": 0, "forecast": 0},
        ),
        "no engine": (series("a", wanted_backends=1, backends=0, held_requests=7), {"recommendation": 1, "recommendation+1": 2, "held": 1}),
        "no gateway": ([], {"held": 0}),
    }
    tests = []
    for name, (given, meant) in cases.items():
        asked = [
            {"expr": query, "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": meant[key]}] if key in meant else []}
            for key, query in queries.items()
        ]
        tests.append({"name": name, "interval": "1m", "input_series": given, "promql_expr_test": asked})
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("autoscaling", "message"),
    [
        ({"by": "both"}, 'pools.chat.autoscaling.by must be one of the following: "none", "keda", "hpa"'),
        ({"keda": {}, "hpa": {}}, "pools.chat.autoscaling: Additional property hpa is not allowed"),
        ({"signals": []}, "pools.chat.autoscaling.signals: Array must have at least 1 items"),
        ({"signals": [{"name": "cpu"}]}, "pools.chat.autoscaling.signals.0.name must be one of"),
        ({"scaleIn": {"periodSeconds": 3600}}, "pools.chat.autoscaling.scaleIn.periodSeconds: Must be less than or equal to 1800"),
        ({"prometheus": {"address": "http://user:word@p:9090"}}, "pools.chat.autoscaling.prometheus.address: Does not match pattern"),
        ({"prometheus": {"address": ""}}, "pools.chat.autoscaling.prometheus.address: is empty; write where KEDA asks"),
        ({"min": 9}, "pools.chat.autoscaling.min: is 9 and max 8; the first is the smaller one"),
        ({"signals": [{"name": "kv"}, {"name": "kv"}]}, "pools.chat.autoscaling.signals: kv stands twice; keep one"),
        ({"signals": [{"name": "recommendation", "target": 2}]}, "the recommendation is a number of backends and has no target"),
        ({"signals": [{"name": "deficit"}]}, "pools.chat.autoscaling.signals: the deficit is 0 as soon as promises are kept"),
        ({"signals": [{"name": "kv"}, {"name": "forecast", "target": 2}]}, "the forecast is a number of backends and has no target"),
        ({"signals": [{"name": "recommendation"}, {"name": "forecast"}]}, "the recommendation has the forecast in it already"),
        ({"signals": [{"name": "forecast"}]}, "a forecast knows nothing of what days before did not have"),
        ({"schedule": [{"start": "0 8 * * *", "end": "0 9 * * *", "engines": 9}]}, "schedule.0.engines: is 9 and max 8"),
        ({"schedule": [{"start": "0 8 * * *", "end": "0 8 * * *", "engines": 2}]}, 'schedule.0: start and end are both "0 8 * * *"'),
        ({"schedule": [{"start": "0 8 * * *", "end": "0 9 * * *", "engines": 2}], "by": "hpa"}, "schedule: needs by: keda"),
        ({"schedule": [{"start": "eight", "end": "0 9 * * *", "engines": 2}]}, "schedule.0.start: Does not match pattern"),
        ({"standby": 1, "signals": [{"name": "kv"}]}, "pools.chat.autoscaling.standby: stands above the recommendation"),
        ({"standby": 1, "by": "hpa"}, "pools.chat.autoscaling.standby: needs by: keda"),
        ({"toZero": {"enabled": True}, "by": "hpa"}, "pools.chat.autoscaling.toZero: needs by: keda"),
        ({"toZero": {"enabled": True}, "signals": [{"name": "queue"}]}, "pools.chat.autoscaling.toZero: needs the recommendation"),
        ({"toZero": {"enabled": True}, "standby": 1}, "pools.chat.autoscaling.toZero: contradicts standby: 1"),
        ({"fallback": {"replicas": 2}, "by": "hpa"}, "pools.chat.autoscaling.fallback: needs by: keda"),
        ({"fallback": {"replicas": 2}, "signals": [{"name": "recommendation"}, {"name": "kv"}]}, "pools.chat.autoscaling.fallback: KEDA"),
    ],
)
def test_the_chart_of_the_engines_refuses(autoscaling: dict[str, Any], message: str) -> None:
    assert message in refusal("engines", **scaled(**autoscaling))


def test_the_halves_of_a_disaggregated_pool_scale_by_figures_of_their_own() -> None:
    for role in ("prefill", "decode"):
        values = scaled(pool="long", signals=[{"name": "recommendation"}, {"name": "kv"}])
        values["pools"]["chat"] |= {"launch": f"vllm-pd-{role}", "role": role, "group": "long"}
        documents = rendered("engines", **values)
        assert problems(documents) == []
        queries = [trigger["metadata"]["query"] for trigger in of(documents, "ScaledObject")["spec"]["triggers"]]
        assert queries == [f'max(tidegate_pool_{name}{{pool="long", role="{role}"}})' for name in ("wanted_backends", "kv_pressure_ratio")]


@pytest.mark.parametrize(
    ("pool", "autoscaling", "message"),
    [
        ({"group": "ranks"}, {}, 'autoscaling.by: the engines of group "ranks" are ranks of one model and serve together'),
        ({"role": "decode", "group": "long"}, {}, "autoscaling.pool: is empty; name the pool in tidegate.yaml"),
        (
            {"role": "decode", "group": "long"},
            {"pool": "long", "signals": [{"name": "kv"}, {"name": "ttft"}]},
            "autoscaling.signals: ttft is that of prompts, which decode engines compute none of",
        ),
        (
            {"role": "decode", "group": "long"},
            {"pool": "long", "toZero": {"enabled": True}},
            "serve nobody without decode engines; keep one",
        ),
    ],
)
def test_engines_that_cannot_come_or_go_alone_are_refused(pool: dict[str, Any], autoscaling: dict[str, Any], message: str) -> None:
    values = scaled(**autoscaling)
    values["pools"]["chat"] |= pool
    assert message in refusal("engines", **values)


def gateways(**autoscaling: Any) -> dict[str, Any]:
    """Values of gateways that scale, over the example of two."""
    return {"autoscaling": {"enabled": True, "max": 4, **autoscaling}}


def test_gateways_scale_by_their_own_processor_time_and_open_requests() -> None:
    documents = rendered("tidegate", "eight-gpu-node", **gateways(openRequests=400))
    assert problems(documents) == []
    spec = of(documents, "HorizontalPodAutoscaler")["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "tidegate"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 4)
    cpu, requests = spec["metrics"]
    assert (cpu["containerResource"]["name"], cpu["containerResource"]["container"]) == ("cpu", "gateway")
    assert requests["pods"]["metric"]["name"] in GAUGES, "the gateway has a metric of this name"
    assert spec["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]
    assert "replicas" not in of(documents, "StatefulSet")["spec"]
    assert "HorizontalPodAutoscaler" not in {d["kind"] for d in rendered("tidegate", "eight-gpu-node")}


@pytest.mark.parametrize(
    ("name", "autoscaling", "message"),
    [
        (
            "single-gpu-node",
            {},
            "autoscaling.max: 4 gateways cannot share SQLite; name PostgreSQL in stores.sql, or write autoscaling.max: 1",
        ),
        ("eight-gpu-node", {"min": 5}, "autoscaling.min: is 5 and max 4; the first is the smaller one"),
        ("eight-gpu-node", {"cpu": 0}, "autoscaling: neither cpu nor openRequests is set"),
        ("eight-gpu-node", {"cpu": "70%"}, "autoscaling.cpu: Invalid type"),
    ],
)
def test_the_chart_of_the_gateway_refuses(name: str, autoscaling: dict[str, Any], message: str) -> None:
    assert message in refusal("tidegate", name, **gateways(**autoscaling))


class ApiServer(BaseHTTPRequestHandler):
    """What helm asks of an API server for `lookup`, scripted from the API's documentation: the kinds of apps/v1, and one StatefulSet."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        answers: dict[str, Any] = {
            "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [
                    {
                        "name": "apps",
                        "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
                        "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
                    }
                ],
            },
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis/apps/v1": {
                "kind": "APIResourceList",
                "groupVersion": "apps/v1",
                "resources": [
                    {"name": "statefulsets", "singularName": "statefulset", "namespaced": True, "kind": "StatefulSet", "verbs": ["get"]}
                ],
            },
        }
        for name in ("engines-chat", "tidegate"):
            there = {
                "kind": "StatefulSet",
                "apiVersion": "apps/v1",
                "metadata": {"name": name, "namespace": "llm"},
                "spec": {"replicas": 6},
            }
            answers[f"/apis/apps/v1/namespaces/llm/statefulsets/{name}"] = there
        found = answers.get(path)
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.mark.parametrize("chart", ["engines", "tidegate"])
def test_an_upgrade_leaves_the_number_of_pods_as_it_is(chart: str, tmp_path: Path) -> None:
    """Without `replicas` Kubernetes takes one. With the StatefulSet there, helm finds 6 and writes 6."""
    values = scaled() if chart == "engines" else yaml.safe_load(example("tidegate", "eight-gpu-node").read_text()) | gateways()
    assert "replicas" not in of(rendered(chart, **values), "StatefulSet")["spec"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        config = tmp_path / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
        whole = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "users": [{"name": "c", "user": {}}]}
        config.write_text(yaml.safe_dump(whole | {"current-context": "c"}))
        command = [BIN / "helm", "template", chart, CHARTS / chart, "--namespace", "llm", "--dry-run=server", "--validate=false"]
        more = ["--kubeconfig", config, "--kube-version", "1.33", "--values", "-"]
        done = subprocess.run([*command, *more], input=yaml.safe_dump(values), capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        documents: list[Document] = [document for document in yaml.safe_load_all(done.stdout) if document]
        assert of(documents, "StatefulSet")["spec"]["replicas"] == 6
    finally:
        server.shutdown()
        server.server_close()
