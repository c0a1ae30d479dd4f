"""The rule file: its form, and each alert by promtool on series as Prometheus records them, when it fires and when it does not.

A case feeds series with one value a minute; `a+bxn` begins at `a` and adds `b` n times. The alert must not fire at `quiet` and must fire at
`fires` with these labels and this sentence.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.dashboards.alerts import CAUSES, PAGES
from gateway.dashboards.objectives import ANSWERED, KEPT, WINDOWS, alert_groups
from gateway.dashboards.panels import label_names
from gateway.dashboards.rules import rules
from gateway.telemetry.exposition import describe

ROOT = Path(__file__).parents[4]
FILE = ROOT / "charts" / "alerts" / "tidegate.rules.yml"
ENGINE = 'instance="gw:8081", pool="chat", backend="gpu-1"'
GATEWAY = 'instance="gw:8081", job="tidegate"'


class Case(NamedTuple):
    """One alert on recorded series."""

    alert: str
    series: dict[str, str]
    fires: str
    labels: dict[str, str]
    summary: str
    quiet: str = "0m"
    over: str = ""
    """When it no longer fires; empty where that says nothing more."""


def on_engine(alert: str, family: str, values: str, fires: str, summary: str, quiet: str) -> Case:
    labels = {"instance": "gw:8081", "pool": "chat", "backend": "gpu-1"}
    return Case(alert, {f"{family}{{{ENGINE}}}": values}, fires, labels, summary, quiet)


def on_gateway(alert: str, family: str, values: str, fires: str, summary: str, quiet: str) -> Case:
    return Case(alert, {f"{family}{{{GATEWAY}}}": values}, fires, {"instance": "gw:8081", "job": "tidegate"}, summary, quiet)


SERVED = 'tidegate_class_requests_total{job="tidegate", class="default", result="ok"}'
FAILED = 'tidegate_class_requests_total{job="tidegate", class="default", result="engine"}'
REFUSED = 'tidegate_class_requests_total{job="tidegate", class="default", result="caller"}'
KEPT_TTFT = 'tidegate_slo_requests_total{job="tidegate", model="chat", slo="ttft", met="true"}'
MISSED_TTFT = 'tidegate_slo_requests_total{job="tidegate", model="chat", slo="ttft", met="false"}'
CERTIFICATE = 'tidegate_certificate_expires_timestamp_seconds{instance="gw:8081", use="engines", pool="chat"}'

CASES = (
    # of 1,000 requests a minute 20 fail from the first hour on: 2 %, above 14.4 times the budget of 0.1 %
    Case(
        "AvailabilityBudgetBurnsFast",
        {SERVED: "0+980x200", FAILED: "0x60 0+20x70 1400x60", REFUSED: "0+500x200"},
        "130m",
        {"job": "tidegate"},
        "2% of the requests fail by the fault of gateway or engines, which spends a month's error budget within days",
        quiet="60m",
        over="170m",  # an hour's share is still high, that of the last minutes is not
    ),
    # 4 in 1,000: above three times the budget; a long window without older data has the share of what there is
    Case(
        "AvailabilityBudgetBurnsSlowly",
        {SERVED: "0+996x100", FAILED: "0+4x100"},
        "95m",
        {"job": "tidegate"},
        "0.4% of the requests fail by the fault of gateway or engines, which spends more error budget than there is",
        quiet="30m",
    ),
    Case(
        "PromiseBudgetBurnsFast",
        {KEPT_TTFT: "0+100x60 6010+10x100", MISSED_TTFT: "0x60 90+90x100"},
        "130m",
        {"job": "tidegate", "slo": "ttft"},
        "90% of the promises of ttft are not kept, which spends a month's error budget within days",
        quiet="60m",
    ),
    Case(
        "PromiseBudgetBurnsSlowly",
        {KEPT_TTFT: "0+80x100", MISSED_TTFT: "0+20x100"},
        "95m",
        {"job": "tidegate", "slo": "ttft"},
        "20% of the promises of ttft are not kept, which spends more error budget than there is",
        quiet="30m",
    ),
    Case(
        "PoolOut",
        {
            'tidegate_backend_up{instance="gw:8081", pool="chat", backend="gpu-1"}': "1x5 0x20",
            'tidegate_backend_up{instance="gw:8081", pool="chat", backend="gpu-2"}': "1x8 0x20",
            'tidegate_backend_up{instance="gw:8081", pool="code", backend="gpu-3"}': "1x30",
        },
        "11m",
        {"instance": "gw:8081", "pool": "chat"},
        "Pool chat has no engine that takes requests",
        quiet="8m",
    ),
    on_engine("EngineOut", "tidegate_backend_up", "1x5 0x20", "9m", "gpu-1 of pool chat takes no requests", "7m"),
    on_engine(
        *("BreakerOpen", "tidegate_backend_breaker_state", "0x3 1x3 2x20", "11m"),
        *("A circuit breaker of gpu-1 is open: it fails requests although it is up", "6m"),
    ),
    on_engine(
        *("SignalsMissing", "tidegate_backend_signals_missing", "0x3 2x20", "10m"),
        *("gpu-1 does not report 2 signals that placing needs", "5m"),
    ),
    on_engine(
        *("SignalsOld", "tidegate_backend_signals_age_seconds", "0.4x3 30x20", "8m"),
        *("What is known of the load of gpu-1 is 30s old", "4m"),
    ),
    on_engine(
        *("KvEventsUntrusted", "tidegate_backend_kv_events_trusted", "1x3 0x20", "10m"),
        *("The KV events of gpu-1 do not say what is in its cache", "7m"),
    ),
    on_engine("PrefixIndexOff", "tidegate_backend_index_off", "0x3 1x20", "15m", "The prefix index is mostly wrong about gpu-1", "12m"),
    on_engine(
        *("UsageImplausible", "tidegate_usage_implausible_total", "0x20 1x20", "22m"),
        *("gpu-1 reports usage that cannot be, so a bound is billed", "19m"),
    ),
    Case(
        "DiscoverySourceAway",
        {'tidegate_discovery_source_up{instance="gw:8081", pool="chat", source="dns"}': "1x3 0x20"},
        "10m",
        {"instance": "gw:8081", "pool": "chat", "source": "dns"},
        "The source dns of pool chat cannot be read",
        quiet="6m",
    ),
    # callers that left are no refusals
    Case(
        "QueueRefusals",
        {
            f"tidegate_upstream_attempts_total{{{ENGINE}}}": "0+95x60",
            'tidegate_queue_refused_total{instance="gw:8081", pool="chat", class="default", reason="too_long"}': "0x20 0+5x40",
            'tidegate_queue_refused_total{instance="gw:8081", pool="chat", class="default", reason="gone"}': "0+50x60",
        },
        "40m",
        {"instance": "gw:8081", "pool": "chat"},
        "5% of the requests to pool chat find no room on an engine",
        quiet="20m",
    ),
    Case(
        "BatchesStarved",
        {f"tidegate_batch_oldest_line_seconds{{{GATEWAY}}}": "0+3600x50"},
        "40m",
        {},
        "The oldest batch has waited for 1d 16h 0m 0s; most end after a day",
        quiet="20m",
    ),
    Case(
        "EventLoopLate",
        {
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="1", le="0.05"}': "0+230x60",
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="1", le="0.1"}': "0+240x60",
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="1", le="+Inf"}': "0+240x60",
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="0", le="0.05"}': "0+240x60",
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="0", le="0.1"}': "0+240x60",
            'tidegate_loop_lag_seconds_bucket{instance="gw:8081", worker="0", le="+Inf"}': "0+240x60",
        },
        "20m",
        {"instance": "gw:8081", "worker": "1"},
        "Worker 1 of gw:8081 is late by 88ms, and so are its streams",
        quiet="8m",
    ),
    Case(
        "UsageLost",
        {f'tidegate_ledger_events_total{{{GATEWAY}, state="dropped"}}': "0x10 3x10"},
        "12m",
        {"instance": "gw:8081", "job": "tidegate", "state": "dropped"},
        "Usage of gw:8081 cannot be written, so that it is not billed",
        quiet="9m",
    ),
    on_gateway("UsageLost", "tidegate_ledger_full", "0x3 1x5", "5m", "Usage of gw:8081 cannot be written, so that it is not billed", "3m"),
    on_gateway(
        *("LedgerDatabaseAway", "tidegate_ledger_database_up", "1x3 0x20", "10m"),
        *("gw:8081 cannot book usage in its database; it keeps it on disk", "6m"),
    ),
    on_gateway(
        *("LedgerBehind", "tidegate_ledger_lag_seconds", "1x3 600x20", "10m"),
        *("The oldest usage that is not booked is 10m 0s old", "6m"),
    ),
    on_gateway(
        *("LimitCountersAway", "tidegate_limits_degraded", "0x3 1x20", "6m"),
        *("gw:8081 decides on limits without the shared counters", "4m"),
    ),
    on_gateway(
        *("LimitsUnread", "tidegate_limits_unread", "0x3 1x20", "8m"),
        *("Limits over calendar periods lack the usage from before", "4m"),
    ),
    on_gateway(
        *("LimitsDrift", "tidegate_limits_drift_ratio", "0x3 0.08x90", "70m"),
        *("A counter of a limit differs from the ledger by 8%", "50m"),
    ),
    Case(
        "BudgetNearlySpent",
        {
            f'tidegate_budget_headroom_ratio{{{GATEWAY}, tenant="acme"}}': "0.5x3 0.02x20",
            f'tidegate_budget_headroom_ratio{{{GATEWAY}, tenant="other"}}': "0.5x30",
        },
        "10m",
        {"tenant": "acme"},
        "Tenant acme has 2% of a budget left",
        quiet="6m",
    ),
    Case(
        "BudgetMessagesLost",
        {f'tidegate_budget_alerts_total{{{GATEWAY}, result="given_up"}}': "0x10 1x30"},
        "12m",
        {"instance": "gw:8081", "job": "tidegate", "result": "given_up"},
        "A message about a budget could not be delivered and was given up",
        quiet="9m",
    ),
    Case(
        "GuardUnavailable",
        {
            f'tidegate_guard_verdicts_total{{{GATEWAY}, tenant="acme", verdict="unavailable"}}': "0x10 0+3x20",
            f'tidegate_guard_verdicts_total{{{GATEWAY}, tenant="acme", verdict="passed"}}': "0+30x30",
        },
        "15m",
        {"tenant": "acme"},
        "Requests of tenant acme are refused because a guard rule cannot judge",
        quiet="9m",
    ),
    Case(
        "GuardRuleFails",
        {f'tidegate_guard_failures_total{{{GATEWAY}, tenant="acme", rule="people"}}': "0x10 0+1x40"},
        "25m",
        {"rule": "people"},
        "The guard rule people cannot judge some of the texts",
        quiet="15m",
    ),
    # an answer from memory is an answer
    Case(
        "DetectorFails",
        {
            f'tidegate_guard_detector_questions_total{{{GATEWAY}, detector="llama-guard", result="answered"}}': "0+50x40",
            f'tidegate_guard_detector_questions_total{{{GATEWAY}, detector="llama-guard", result="remembered"}}': "0+40x40",
            f'tidegate_guard_detector_questions_total{{{GATEWAY}, detector="llama-guard", result="timeouts"}}': "0x10 0+10x30",
        },
        "25m",
        {"detector": "llama-guard"},
        "10% of the questions to detector llama-guard get no answer",
        quiet="10m",
    ),
    Case(
        "GatewayAway",
        {f"up{{{GATEWAY}}}": "1x3 0x10", f"tidegate_build_info{{{GATEWAY}, version='1'}}".replace("'", '"'): "1x20"},
        "6m",
        {"instance": "gw:8081", "job": "tidegate"},
        "Prometheus cannot read the metrics of gateway gw:8081",
        quiet="4m",
    ),
    # a target that is not configured any more has no `up`
    Case(
        "GatewayAway",
        {f"tidegate_build_info{{{GATEWAY}, version='1'}}".replace("'", '"'): "1x3 stale"},
        "6m",
        {},
        "Prometheus cannot read the metrics of gateway ",
        quiet="3m",
    ),
    Case(
        "WorkerMissing",
        {f'tidegate_worker_state{{{GATEWAY}, worker="1", state="missing"}}': "0x3 1x10"},
        "7m",
        {"instance": "gw:8081", "job": "tidegate", "worker": "1", "state": "missing"},
        "Worker 1 of gw:8081 does not answer",
        quiet="5m",
    ),
    # one unexpected end is a ticket of nobody
    Case(
        "ProcessesEnd",
        {
            f'tidegate_worker_restarts_total{{{GATEWAY}, worker="0"}}': "0x20 0+1x10",
            f'tidegate_worker_restarts_total{{{GATEWAY}, worker="1"}}': "0x10 1x20",
        },
        "26m",
        {"instance": "gw:8081"},
        "Processes of gw:8081 end again and again",
        quiet="18m",
    ),
    on_gateway(
        *("PoliciesRefused", "tidegate_policies_refused", "0x3 2x20", "10m"),
        *("The policy files of gw:8081 have 2 mistakes and are not in force", "6m"),
    ),
    Case(
        "IssuerKeysMissing",
        {f'tidegate_jwks_keys{{{GATEWAY}, issuer="corp"}}': "2x3 0x10"},
        "7m",
        {"instance": "gw:8081", "job": "tidegate", "issuer": "corp"},
        "There is no key to verify tokens of corp with, so all of them are refused",
        quiet="5m",
    ),
    # the clock of promtool begins at 0: from the 11th minute on less than a week is left, or a day
    Case(
        "CertificateExpires",
        {CERTIFICATE: "605400x100"},
        "75m",
        {"instance": "gw:8081", "use": "engines", "pool": "chat"},
        "A certificate for engines (pool chat) expires in 6d 22h 55m 0s",
        quiet="60m",
    ),
    Case(
        "CertificateExpiresToday",
        {CERTIFICATE: "87000x30"},
        "20m",
        {"instance": "gw:8081", "use": "engines", "pool": "chat"},
        "A certificate for engines (pool chat) expires in 23h 50m 0s",
        quiet="12m",
    ),
    on_gateway(
        *("RolloutUnwatched", "tidegate_rollout_looked_timestamp_seconds", "0+60x10 600x20", "15m"),
        *("No gateway evaluates the rollouts, so that none is rolled back", "10m"),
    ),
    Case(
        "RolloutRolledBack",
        {f'tidegate_rollout_changes_total{{{GATEWAY}, change="rollout.rollback"}}': "0x10 1x20"},
        "12m",
        {"instance": "gw:8081", "job": "tidegate", "change": "rollout.rollback"},
        "A rollout was rolled back because its canary was worse",
        quiet="9m",
    ),
    Case(
        "TracesLost",
        {
            f'tidegate_traces_total{{{GATEWAY}, exporter="main", result="sent"}}': "0+60x60",
            f'tidegate_traces_total{{{GATEWAY}, exporter="main", result="failed"}}': "0x10 0+2x50",
            f'tidegate_traces_total{{{GATEWAY}, exporter="other", result="sent"}}': "0+60x60",
            f'tidegate_traces_total{{{GATEWAY}, exporter="other", result="failed"}}': "0x60",
        },
        "40m",
        {"instance": "gw:8081", "exporter": "main"},
        "The receiver of exporter main misses traces",
        quiet="20m",
    ),
    Case(
        "RequestLogLost",
        {f"tidegate_request_log_lost_total{{{GATEWAY}}}": "0x10 7x10"},
        "12m",
        {"instance": "gw:8081"},
        "Finished requests of gw:8081 are missing in the request log or in a further sink of it",
        quiet="9m",
    ),
    Case(
        "RequestLogLost",
        {
            f'tidegate_request_log_sink_total{{{GATEWAY}, sink="otlp", result="sent"}}': "0+60x30",
            f'tidegate_request_log_sink_total{{{GATEWAY}, sink="otlp", result="dropped"}}': "0x10 5x10",
        },
        "12m",
        {"instance": "gw:8081"},
        "Finished requests of gw:8081 are missing in the request log or in a further sink of it",
        quiet="9m",
    ),
    Case(
        "JudgeDisagrees",
        {
            f'tidegate_judge_agreement_ratio{{{GATEWAY}, model="small", kind="scores"}}': "0.9x40",
            f'tidegate_judge_agreement_ratio{{{GATEWAY}, model="small", kind="pairs"}}': "0.75x40",
            f'tidegate_rollout_judgement{{{GATEWAY}, rollout="v2", metric="judged"}}': "_x10 0x30",
        },
        "20m",
        {"model": "small", "kind": "pairs", "instance": "gw:8081", "job": "tidegate"},
        "Judge small agrees on 75% of pairs, and a rollout is decided by it",
        quiet="9m",
    ),
)
ALERTS = {alert.name: alert for group in alert_groups() for alert in group.alerts}


def as_promtool(case: Case) -> dict[str, Any]:
    alert = ALERTS[case.alert]
    expected = {
        "exp_labels": case.labels | {"severity": alert.severity},
        "exp_annotations": {"summary": case.summary, "runbook_url": alert.runbook},
    }
    return {
        "name": case.alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": case.quiet, "alertname": case.alert, "exp_alerts": []},
            {"eval_time": case.fires, "alertname": case.alert, "exp_alerts": [expected]},
            *([{"eval_time": case.over, "alertname": case.alert, "exp_alerts": []}] if case.over else []),
        ],
    }


def promtool(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: make observe-tools")
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def run_cases(folder: Path, cases: tuple[Case, ...]) -> "subprocess.CompletedProcess[str]":
    (folder / "rules.yml").write_text(rules())
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": list(map(as_promtool, cases))}
    (folder / "tests.yml").write_text(json.dumps(tests))  # JSON is YAML
    return promtool(folder, "test", "rules", "tests.yml")


def test_every_alert_fires_on_recorded_series_and_not_before(tmp_path: Path) -> None:
    done = run_cases(tmp_path, CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_an_alert_that_does_not_fire(tmp_path: Path) -> None:
    """Else the test above says nothing."""
    case = next(case for case in CASES if case.alert == "EngineOut")
    done = run_cases(tmp_path, (case._replace(series={name: "1x40" for name in case.series}),))
    assert done.returncode != 0
    assert "EngineOut" in done.stdout + done.stderr


def test_every_alert_has_a_case() -> None:
    assert sorted(set(ALERTS) - {case.alert for case in CASES}) == []


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_runbook_that_shows_it_as_it_is(name: str) -> None:
    alert = ALERTS[name]
    page = (ROOT / alert.runbook).read_text()
    assert page.startswith(f"# {name}\n\nThis page is for whoever gets this alert: ")
    assert f"\n```promql\n{alert.expr}\n```\n" in page
    assert f"(`{alert.severity}`)" in page
    assert f"this holds{f' for {alert.for_}' if alert.for_ else ''}:\n" in page
    assert [part for part in ("What it means", "Where to look", "What to do") if f"\n## {part}\n\n" not in page] == []
    says = page.removeprefix(f"# {name}\n\nThis page is for whoever gets this alert: ").partition("\n")[0]
    row = f"| [{name}]({Path(alert.runbook).relative_to('docs/reference')}) | {alert.severity} | {alert.for_ or 'at once'} | "
    assert f"\n{row}{says[0].upper()}{says[1:]} |\n" in (ROOT / "docs" / "reference" / "alerts.md").read_text()


def test_there_is_no_runbook_of_an_alert_that_is_gone() -> None:
    pages = {page.relative_to(ROOT).as_posix() for page in (ROOT / PAGES).iterdir()}
    assert pages == {alert.runbook for alert in ALERTS.values()}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_reads_metrics_and_labels_that_there_are(name: str) -> None:
    """The shares that are recorded are of the same file, and `up` is Prometheus's."""
    families = describe()
    for expr in [ALERTS[name].expr, *(expr for objective in (ANSWERED, KEPT) for _, expr in objective.recorded())]:
        labels = label_names(expr)
        grouped = labels.pop("") - {"instance", "job", "le"}
        assert labels.keys() <= families.keys()
        for family, named in labels.items():
            assert named <= set(families[family][1])
            assert grouped <= set(families[family][1])


def test_the_file_in_the_project_is_that_of_the_code(tmp_path: Path) -> None:
    assert FILE.read_text() == rules(), "run tidegate export-dashboards"


def test_prometheus_takes_the_file(tmp_path: Path) -> None:
    done = promtool(tmp_path, "check", "rules", str(FILE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_says_how_urgent_it_is_and_where_its_runbook_is() -> None:
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(rules(docs="https://docs.example/"))["groups"]}
    (rule,) = (rule for rule in groups["tidegate-engines"] if rule["alert"] == "EngineOut")
    assert rule["for"] == "2m"
    assert rule["labels"] == {"severity": "ticket"}
    assert rule["annotations"]["runbook_url"] == "https://docs.example/reference/alerts/engine-out.md"
    assert [len(groups["tidegate-recorded"]), *groups] == [
        *(2 * len(WINDOWS), "tidegate-recorded", "tidegate-objectives"),
        *(group.name for group in CAUSES),
    ]
    assert {name.partition(":ratio")[0] for name, _ in (*ANSWERED.recorded(), *KEPT.recorded())} == {ANSWERED.record, KEPT.record}


def test_other_objectives_give_other_bounds() -> None:
    text = rules(availability=0.99)
    assert "tidegate:requests_failed:ratio_rate1h > 0.144 and" in text
    assert "tidegate:requests_failed:ratio_rate1h > 0.0144 and" in rules()
