"""The alerts: what has to be true for how long before somebody is woken (page) or has something to do in working hours (ticket).

Each alert has its runbook in `docs/reference/alerts/` and a case for promtool; tests miss none. Alerts about service levels
are in `objectives`: whether an error budget is being spent too fast, over two windows each, so that they neither flap nor come late.
"""

import re
from typing import Final, Literal

import msgspec

Severity = Literal["page", "ticket"]

PAGES: Final = "docs/reference/alerts"
"""The folder of the runbooks."""
_WORDS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Alert(msgspec.Struct, frozen=True):
    """One alert."""

    name: str
    expr: str
    for_: str
    """How long it has to be true; empty for at once."""
    severity: Severity
    summary: str
    """One line about this occurrence; `{{ $labels.x }}` and `{{ $value }}` are Prometheus's."""

    @property
    def runbook(self) -> str:
        """The page that says what to do, by its path in the project."""
        return f"{PAGES}/{_WORDS.sub('-', self.name).lower()}.md"


class AlertGroup(msgspec.Struct, frozen=True):
    """Alerts about one thing."""

    name: str
    alerts: tuple[Alert, ...]


ENGINES: Final = AlertGroup(
    "tidegate-engines",
    (
        Alert(
            "PoolOut",
            "max by (instance, pool) (tidegate_backend_up) == 0",
            "1m",
            "page",
            "Pool {{ $labels.pool }} has no engine that takes requests",
        ),
        Alert(
            "EngineOut",
            "tidegate_backend_up == 0",
            "2m",
            "ticket",
            "{{ $labels.backend }} of pool {{ $labels.pool }} takes no requests",
        ),
        Alert(
            "BreakerOpen",
            "tidegate_backend_breaker_state == 2",
            "2m",
            "ticket",
            "A circuit breaker of {{ $labels.backend }} is open: it fails requests although it is up",
        ),
        Alert(
            "SignalsMissing",
            "tidegate_backend_signals_missing > 0",
            "5m",
            "ticket",
            "{{ $labels.backend }} does not report {{ $value }} signals that placing needs",
        ),
        Alert(
            "SignalsOld",
            "tidegate_backend_signals_age_seconds > 10",
            "2m",
            "ticket",
            "What is known of the load of {{ $labels.backend }} is {{ $value | humanizeDuration }} old",
        ),
        Alert(
            "KvEventsUntrusted",
            "tidegate_backend_kv_events_trusted == 0",
            "5m",
            "ticket",
            "The KV events of {{ $labels.backend }} do not say what is in its cache",
        ),
        Alert(
            "PrefixIndexOff",
            "tidegate_backend_index_off == 1",
            "10m",
            "ticket",
            "The prefix index is mostly wrong about {{ $labels.backend }}",
        ),
        Alert(
            "UsageImplausible",
            "increase(tidegate_usage_implausible_total[15m]) > 0",
            "",
            "ticket",
            "{{ $labels.backend }} reports usage that cannot be, so a bound is billed",
        ),
        Alert(
            "DiscoverySourceAway",
            "tidegate_discovery_source_up == 0",
            "5m",
            "ticket",
            "The source {{ $labels.source }} of pool {{ $labels.pool }} cannot be read",
        ),
    ),
)

OVERLOAD: Final = AlertGroup(
    "tidegate-overload",
    (
        Alert(
            "QueueRefusals",
            'sum by (instance, pool) (rate(tidegate_queue_refused_total{reason!~"gone|stopped"}[5m])) / '
            '(sum by (instance, pool) (rate(tidegate_queue_refused_total{reason!~"gone|stopped"}[5m])) '
            "+ sum by (instance, pool) (rate(tidegate_upstream_attempts_total[5m]))) > 0.01",
            "5m",
            "page",
            "{{ $value | humanizePercentage }} of the requests to pool {{ $labels.pool }} find no room on an engine",
        ),
        Alert(
            "BatchesStarved",
            "max(tidegate_batch_oldest_line_seconds) > 72000",
            "10m",
            "ticket",
            "The oldest batch has waited for {{ $value | humanizeDuration }}; most end after a day",
        ),
        Alert(
            "EventLoopLate",
            "histogram_quantile(0.99, sum by (instance, worker, le) (rate(tidegate_loop_lag_seconds_bucket[5m]))) > 0.05",
            "10m",
            "ticket",
            "Worker {{ $labels.worker }} of {{ $labels.instance }} is late by {{ $value | humanizeDuration }}, and so are its streams",
        ),
    ),
)

BOOKS: Final = AlertGroup(
    "tidegate-books",
    (
        Alert(
            "UsageLost",
            'increase(tidegate_ledger_events_total{state="dropped"}[10m]) > 0 or tidegate_ledger_full == 1',
            "",
            "page",
            "Usage of {{ $labels.instance }} cannot be written, so that it is not billed",
        ),
        Alert(
            "LedgerDatabaseAway",
            "tidegate_ledger_database_up == 0",
            "5m",
            "ticket",
            "{{ $labels.instance }} cannot book usage in its database; it keeps it on disk",
        ),
        Alert(
            "LedgerBehind",
            "tidegate_ledger_lag_seconds > 300",
            "5m",
            "ticket",
            "The oldest usage that is not booked is {{ $value | humanizeDuration }} old",
        ),
        Alert(
            "LimitCountersAway",
            "tidegate_limits_degraded == 1",
            "1m",
            "page",
            "{{ $labels.instance }} decides on limits without the shared counters",
        ),
        Alert(
            "LimitsUnread",
            "tidegate_limits_unread == 1",
            "2m",
            "ticket",
            "Limits over calendar periods lack the usage from before",
        ),
        Alert(
            "LimitsDrift",
            "tidegate_limits_drift_ratio > 0",
            "1h",
            "ticket",
            "A counter of a limit differs from the ledger by {{ $value | humanizePercentage }}",
        ),
        Alert(
            "BudgetNearlySpent",
            "min by (tenant) (tidegate_budget_headroom_ratio) < 0.05",
            "5m",
            "ticket",
            "Tenant {{ $labels.tenant }} has {{ $value | humanizePercentage }} of a budget left",
        ),
        Alert(
            "BudgetMessagesLost",
            'increase(tidegate_budget_alerts_total{result="given_up"}[1h]) > 0',
            "",
            "ticket",
            "A message about a budget could not be delivered and was given up",
        ),
    ),
)

GUARDS: Final = AlertGroup(
    "tidegate-guards",
    (
        Alert(
            "GuardUnavailable",
            'sum by (tenant) (increase(tidegate_guard_verdicts_total{verdict="unavailable"}[5m])) > 0',
            "2m",
            "page",
            "Requests of tenant {{ $labels.tenant }} are refused because a guard rule cannot judge",
        ),
        Alert(
            "GuardRuleFails",
            "sum by (rule) (increase(tidegate_guard_failures_total[10m])) > 0",
            "10m",
            "ticket",
            "The guard rule {{ $labels.rule }} cannot judge some of the texts",
        ),
        Alert(
            "DetectorFails",
            'sum by (detector) (rate(tidegate_guard_detector_questions_total{result=~"timeouts|open|busy|errors|unreadable"}[5m])) / '
            "sum by (detector) (rate(tidegate_guard_detector_questions_total[5m])) > 0.05",
            "5m",
            "ticket",
            "{{ $value | humanizePercentage }} of the questions to detector {{ $labels.detector }} get no answer",
        ),
    ),
)

PROCESSES: Final = AlertGroup(
    "tidegate-processes",
    (
        Alert(
            "GatewayAway",
            'up{job="tidegate"} == 0 or absent(tidegate_build_info)',
            "1m",
            "page",
            "Prometheus cannot read the metrics of gateway {{ $labels.instance }}",
        ),
        Alert(
            "WorkerMissing",
            'tidegate_worker_state{state="missing"} == 1',
            "2m",
            "ticket",
            "Worker {{ $labels.worker }} of {{ $labels.instance }} does not answer",
        ),
        Alert(
            "ProcessesEnd",
            "sum by (instance) (increase(tidegate_worker_restarts_total[15m])) > 2",
            "",
            "page",
            "Processes of {{ $labels.instance }} end again and again",
        ),
        Alert(
            "PoliciesRefused",
            "tidegate_policies_refused > 0",
            "5m",
            "ticket",
            "The policy files of {{ $labels.instance }} have {{ $value }} mistakes and are not in force",
        ),
        Alert(
            "IssuerKeysMissing",
            "tidegate_jwks_keys == 0",
            "2m",
            "page",
            "There is no key to verify tokens of {{ $labels.issuer }} with, so all of them are refused",
        ),
        Alert(
            "CertificateExpires",
            "min by (instance, use, pool) (tidegate_certificate_expires_timestamp_seconds) - time() < 604800",
            "1h",
            "ticket",
            "A certificate for {{ $labels.use }} (pool {{ $labels.pool }}) expires in {{ $value | humanizeDuration }}",
        ),
        Alert(
            "CertificateExpiresToday",
            "min by (instance, use, pool) (tidegate_certificate_expires_timestamp_seconds) - time() < 86400",
            "5m",
            "page",
            "A certificate for {{ $labels.use }} (pool {{ $labels.pool }}) expires in {{ $value | humanizeDuration }}",
        ),
        Alert(
            "RolloutUnwatched",
            "time() - tidegate_rollout_looked_timestamp_seconds > 60",
            "2m",
            "ticket",
            "No gateway evaluates the rollouts, so that none is rolled back",
        ),
        Alert(
            "RolloutRolledBack",
            'increase(tidegate_rollout_changes_total{change="rollout.rollback"}[15m]) > 0',
            "",
            "ticket",
            "A rollout was rolled back because its canary was worse",
        ),
        Alert(
            "JudgeDisagrees",
            'tidegate_judge_agreement_ratio < 0.8 and on () (count(tidegate_rollout_judgement{metric="judged"}) > 0)',
            "5m",
            "ticket",
            "Judge {{ $labels.model }} agrees on {{ $value | humanizePercentage }} of {{ $labels.kind }}, and a rollout is decided by it",
        ),
    ),
)

OBSERVATION: Final = AlertGroup(
    "tidegate-observation",
    (
        Alert(
            "TracesLost",
            'sum by (instance, exporter) (increase(tidegate_traces_total{result!="sent"}[15m])) > 0',
            "15m",
            "ticket",
            "The receiver of exporter {{ $labels.exporter }} misses traces",
        ),
        Alert(
            "RequestLogLost",
            "sum by (instance) (increase(tidegate_request_log_lost_total[15m])) > 0 or "
            'sum by (instance) (increase(tidegate_request_log_sink_total{result!="sent"}[15m])) > 0',
            "",
            "ticket",
            "Finished requests of {{ $labels.instance }} are missing in the request log or in a further sink of it",
        ),
    ),
)

CAUSES: Final = (ENGINES, OVERLOAD, BOOKS, GUARDS, PROCESSES, OBSERVATION)
"""The groups about single causes; those about service levels depend on what is promised (`objectives`)."""
