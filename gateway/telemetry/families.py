"""The table of metric families that finished requests feed: names, labels, buckets and their bounds. Values only.

How they are counted is `telemetry.metrics`, how they are written `telemetry.exposition`; what each means to an operator
is `docs/reference/metrics.md`, which a test compares with this table.

Size: one table, a family in a few lines each.
"""

from typing import Final, Literal, get_args

import msgspec

from cache.eligible import NOT_KEPT, REASONS, SIMILAR_REASONS
from domain.ask import Endpoint
from domain.faults import SOURCE, Kind, Source
from domain.priority import WORDS
from gateway.judge.questions import PAIR_OUTCOMES
from gateway.queue.refusals import REFUSALS
from gateway.record import GAP_BOUNDS_S, OK, SERVICE_LEVELS
from gateway.request.degrade import STEPS
from guardrails.policy import Direction, Mode
from policies.fallback import CONDITIONS
from routing.registry import POLICIES
from tenancy.feedback import RATINGS
from tenancy.jwt import JwtOutcome

OTHER: Final = "_other"
"""The label value of everything beyond a bound, or outside a closed set."""
NONE: Final = "_none"
"""The label value of an absent property (no pool was chosen, no key was known). Prometheus reads an empty value as a missing
label, which would make such series collide with aggregations by people."""

MAX_SERIES: Final = 2000
"""Exposed series per family, buckets counted, over all workers together (requirement R38)."""

OUTCOMES: Final = frozenset({OK, *(kind.value for kind in Kind)})
OWN_ROUTES: Final = ("/v1/models", "/v1/key", "/v1/guard", "/v1/moderations", "/v1/feedback")
STORED_ROUTES: Final = (
    *("/v1/files", "/v1/uploads", "/v1/batches"),
    *("/v1/responses/{id}", "/v1/responses/{id}/input_items", "/v1/responses/{id}/cancel"),
    *("/v1/chat/completions/", "/v1/chat/completions/{id}", "/v1/chat/completions/{id}/messages"),
    *("/v1/conversations", "/v1/conversations/{id}", "/v1/conversations/{id}/items", "/v1/conversations/{id}/items/{item_id}"),
)
"""What is asked of something stored; `/v1/chat/completions/` lists the chats."""
ENDPOINTS: Final = frozenset(
    {
        *(endpoint.value for endpoint in Endpoint),
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        *OWN_ROUTES,
        *STORED_ROUTES,
    }
)
STATUS_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")

ERROR_TYPES: Final = ("", *(source.value for source in Source))
"""The label `error_type`: whose failure it was, empty for a success, as OpenTelemetry wants it."""
TOKEN_TYPES: Final = ("prompt", "cached", "completion", "reasoning")
CLOSINGS: Final = ("settle", "estimate", "release", "hit")
CLOSING_AT: Final = {word: at for at, word in enumerate(CLOSINGS)}
CACHE_RESULTS: Final = ("hit-exact", "hit-partial", "hit-semantic", "miss")
CACHE_BYPASSES: Final = (*REASONS, "rollout", "asked")
GUARD_WORDS: Final = ("passed", "flagged", "changed", "block", "unavailable", "too_long")
"""The words of `gateway.guards.facts.GuardRecord`."""
GUARD_MODES: Final[tuple[str, ...]] = (*get_args(Mode), OTHER)
GUARD_DIRECTIONS: Final[tuple[str, ...]] = (*get_args(Direction), OTHER)
LORA_RESULTS: Final = ("ok", "failed")
CLASS_RESULTS: Final = (OK, *(source.value for source in Source))
CLASS_RESULT_AT: Final = {OK: 0} | {kind.value: CLASS_RESULTS.index(source.value) for kind, source in SOURCE.items()}
SHARED_RESULTS: Final = ("told", "dropped", "heard")
"""Fields of `gateway.placement.shared_dispatches.SharedFigures`."""
SIBLING_BYTES: Final = ("sent", "received")
SIBLING_LOSSES: Final = ("missed", "unreadable")
CORRECTIONS: Final = ("raised", "lowered")
JUDGE_OUTCOMES: Final = ("scored", "compared", "unreadable", "failed", "no_room", "over_budget", "too_many")
"""What becomes of a sample of the judge."""
BATCH_LINE_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "expired", "again")
LEDGER_STATES: Final = ("written", "dropped")
LORA_CALL_WORDS: Final = ("load", "load_failed", "unload", "unload_failed")
TOKEN_OUTCOMES: Final = tuple(outcome.value for outcome in JwtOutcome)

DURATION_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
"""From a cached model list to a long reasoning answer; roughly doubling, so quantiles are within a factor of 2."""
TTFT_BOUNDS_S: Final = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 120.0)
"""Dense from 80 ms to 2 s, where service levels for the first token are set; 120 s is the largest deadline we allow."""
TPOT_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.8, 2.5)
"""Dense from 5 to 100 ms per token, the range between a small model alone and a large one at its batch limit."""
OVERHEAD_BOUNDS_S: Final = (
    0.00001,
    0.00002,
    0.00003,
    0.00005,
    0.000075,
    0.0001,
    0.00015,
    0.0002,
    0.0003,
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.025,
    0.1,
)
"""From 10 us: the gateway's own share of a request is tens of microseconds, three decades below an engine's."""


GEN_AI_DURATION_BOUNDS_S: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
GEN_AI_TTFT_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
GEN_AI_TPOT_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
GEN_AI_TOKEN_BOUNDS: Final = tuple(4**power for power in range(14))
"""The buckets that OpenTelemetry's conventions for generative AI advise for `gen_ai.*` metrics; the last ones are 1 to 67,108,864 tokens.
Dashboards made for these names count on them, so they stay as they are although `DURATION_BOUNDS_S` and the others fit a gateway better."""
RATIO_BOUNDS: Final = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
"""Around 1, where a prediction was right; above 1 the answer began later than predicted."""
LAG_BOUNDS_S: Final = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""From the resolution of the loop's timers, 1 ms; 5 ms is the bound that a scrape has to keep."""
ANSWER_BOUNDS_TOKENS: Final = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
"""Doubling from 16 to 16,384 tokens, where answers of chats are, so that a shift of the median by half is seen."""
SURPRISAL_BOUNDS_NATS: Final = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Dense from 0.1 to 1 nat a token, where the means of sampled answers are; 0.7 is a choice between two equally likely tokens."""

DECIDED: Final = ("cost", "session", "match", "fewest requests", "rendezvous", "dice", "explored", "alone", "nobody", "room", "destination")
"""The deciding factor of a routing decision: `cost` when no other candidate was near, `alone` when there was no other, `nobody` when no
backend could serve, `room` when there was no time left to wait for a better one, `destination` when an endpoint picker named it; the other
values are tie-breaks."""
PICK_OUTCOMES: Final = ("picked", "nobody", "shed", "refused", "defect")
DESTINATION_OUTCOMES: Final = ("taken", "passed_over", "unknown", "untrusted")
"""What becomes of engines that a request's head names: one took it, none could, none is of the pool, or they do not count."""
SAID_BY: Final = ("index", "engine")
DECISION_BOUNDS_S: Final = (0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""From 10 us. Decisions above a millisecond waited for a long prompt, which is tokenized outside the event loop."""


class Family(msgspec.Struct, frozen=True):
    """One metric family. A cell is the list of numbers behind one combination of its labels.

    A counter's cell is `[n]`, or one number per value of `split`; a histogram's is one count per bucket (bounds, then
    +Inf) and the sum of the observed values last.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()
    """Most important first: at the ceiling the last of them becomes `_other` first."""
    closed: tuple[str, ...] = ()
    """Labels with a closed set of values; they follow `labels` and are never collapsed."""
    closed_combinations: int = 1
    kind: Literal["counter", "histogram"] = "counter"
    bounds: tuple[float, ...] = ()
    split_label: str = ""
    split: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Numbers per cell."""
        return len(self.bounds) + 2 if self.kind == "histogram" else len(self.split) or 1

    @property
    def series(self) -> int:
        """Exposed series per cell: a histogram has its buckets, `_sum` and `_count`."""
        return self.width + 1 if self.kind == "histogram" else self.width


REQUESTS: Final = Family(
    "tidegate_requests_total",
    "Finished requests by how they ended.",
    ("model", "endpoint"),
    ("outcome", "status_class"),
    closed_combinations=(len(OUTCOMES) + 1) * (len(STATUS_CLASSES) + 1),
)
CLASSES: Final = Family(
    "tidegate_class_requests_total",
    "Finished requests of each class, and on whose side it was when they failed.",
    closed=("class",),
    closed_combinations=len(WORDS),
    split_label="result",
    split=CLASS_RESULTS,
)
DURATION: Final = Family(
    "tidegate_request_duration_seconds",
    "From the request's head to the end of its answer.",
    ("model", "endpoint"),
    kind="histogram",
    bounds=DURATION_BOUNDS_S,
)
OVERHEAD: Final = Family(
    "tidegate_overhead_seconds",
    "Time spent by the gateway itself; engines, queue and callers excluded.",
    ("endpoint",),
    kind="histogram",
    bounds=OVERHEAD_BOUNDS_S,
)
TTFT: Final = Family(
    "tidegate_time_to_first_token_seconds",
    "From the request's last byte to the first event of the answer.",
    ("model", "pool"),
    kind="histogram",
    bounds=TTFT_BOUNDS_S,
)
INTER_TOKEN: Final = Family(
    "tidegate_inter_token_seconds",
    "Gaps between the events of a streamed answer.",
    ("model", "pool"),
    kind="histogram",
    bounds=GAP_BOUNDS_S,
)
TPOT: Final = Family(
    "tidegate_time_per_output_token_seconds",
    "Per streamed answer: (last event - first event) / (completion tokens - 1).",
    ("model", "pool"),
    kind="histogram",
    bounds=TPOT_BOUNDS_S,
)
TOKENS: Final = Family(
    "tidegate_tokens_total",
    "Tokens as reported by engines; cached is part of prompt, reasoning part of completion.",
    ("model", "tenant"),
    split_label="type",
    split=TOKEN_TYPES,
)
ATTEMPTS: Final = Family(
    "tidegate_upstream_attempts_total", "Requests sent to a backend, those that failed over included.", ("pool", "backend")
)
MISREPORTED: Final = Family(
    "tidegate_usage_implausible_total", "Replies whose usage was implausible and billed at a bound.", ("pool", "backend")
)
HOLDS: Final = Family("tidegate_hold_closings_total", "How reservations ended.", split_label="closing", split=CLOSINGS)
LORA_REQUESTS: Final = Family(
    "tidegate_lora_requests_total",
    "Finished requests to models that are answered with an adapter.",
    ("lora", "pool"),
    split_label="result",
    split=LORA_RESULTS,
)
LORA_CALLS: Final = Family(
    "tidegate_lora_calls_total",
    "Adapters that engines were told to load or unload.",
    ("backend", "lora"),
    split_label="call",
    split=LORA_CALL_WORDS,
)
SHARED_REQUESTS: Final = Family(
    "tidegate_shared_requests_total",
    "Finished requests whose prompt was computed on one backend for another, by that one.",
    ("pool", "prefill"),
    split_label="result",
    split=LORA_RESULTS,
)
HEDGES: Final = Family(
    "tidegate_hedges_total",
    "Requests sent to a second backend because the first did not begin in time.",
    ("pool",),
    split_label="result",
    split=("won", "lost"),
)
CONTINUED: Final = Family(
    "tidegate_streams_continued_total",
    "Streams whose engine was lost in the middle of the answer, and that another engine was asked to go on with.",
    ("pool",),
    split_label="result",
    split=("ok", "failed"),
)
KV_BATCHES: Final = Family(
    "tidegate_backend_kv_event_batches_total", "Batches of KV events applied, over all workers.", ("pool", "backend")
)
KV_GAPS: Final = Family(
    "tidegate_backend_kv_event_gaps_total", "Times that batches of KV events were missing, over all workers.", ("pool", "backend")
)
LEDGER: Final = Family(
    "tidegate_ledger_events_total", "Usage events on disk, and those there was no room for.", split_label="state", split=LEDGER_STATES
)
FEEDBACK_GIVEN: Final = Family(
    "tidegate_feedback_total",
    "Ratings of answers that callers gave, and that were kept.",
    labels=("tenant",),
    split_label="rating",
    split=RATINGS,
)
JUDGE_SAMPLES: Final = Family(
    "tidegate_judge_samples_total", "Samples of the judge, by what became of them.", split_label="outcome", split=JUDGE_OUTCOMES
)
JUDGE_SCORES: Final = Family(
    "tidegate_judge_scores_total",
    "Answers that the judge scored, by their score.",
    labels=("tenant", "model"),
    split_label="score",
    split=("1", "2", "3", "4", "5"),
)
JUDGE_PAIRS: Final = Family(
    "tidegate_judge_pairs_total",
    "Pairs of answers that the judge compared for rollouts, by the better arm.",
    labels=("model",),
    split_label="better",
    split=PAIR_OUTCOMES,
)
JUDGE_TOKENS: Final = Family("tidegate_judge_tokens_total", "Tokens of the judge's requests, prompts and answers together.")
BATCH_LINES: Final = Family(
    "tidegate_batch_lines_total", "Requests of batches, by what came of them.", split_label="outcome", split=BATCH_LINE_OUTCOMES
)
TOKEN_CHECKS: Final = Family(
    "tidegate_token_checks_total",
    "Requests with a token, by how its verification ended.",
    ("issuer",),
    split_label="outcome",
    split=TOKEN_OUTCOMES,
)
LOAD_REPORTS: Final = Family(
    "tidegate_backend_load_reports_total", "Reports of load that the engine pushed, over all workers.", ("pool", "backend")
)
LOAD_GAPS: Final = Family(
    "tidegate_backend_load_report_gaps_total", "Times that pushed reports of load were missing, over all workers.", ("pool", "backend")
)
COST: Final = Family("tidegate_cost_nanousd_total", "What finished requests cost, in nano-dollars.", ("model", "tenant"))
AUDIO_SECONDS: Final = Family(
    "tidegate_audio_seconds_total", "Seconds of recordings that were transcribed and of speech that was made.", ("model", "tenant")
)
AUDIO_BYTES: Final = Family("tidegate_audio_bytes_total", "Bytes of this sound.", ("model", "tenant"))
SOFT_CROSSED: Final = Family("tidegate_soft_limits_crossed_total", "Soft thresholds of limits that requests have crossed.", ("tenant",))
GIVEN_UP: Final = Family("tidegate_settlements_given_up_total", "Settlements that were not kept for a counter store that was away.")
CROWDED: Final = Family("tidegate_limits_crowded_total", "Decisions about end users beyond the bound on a tenant's, which share one.")
CORRECTED: Final = Family(
    "tidegate_limits_corrected_total", "Counters that had drifted from the ledger.", split_label="direction", split=CORRECTIONS
)

DECISIONS: Final = Family(
    "tidegate_route_decisions_total",
    "Placing decisions, by what decided between backends that cost nearly the same.",
    closed=("policy",),
    closed_combinations=len(POLICIES) + 1,
    split_label="by",
    split=DECIDED,
)
DECISION_TIME: Final = Family(
    "tidegate_route_decision_seconds",
    "Reading the prompt for placing it, looking it up, and the decision.",
    closed=("policy",),
    closed_combinations=len(POLICIES) + 1,
    kind="histogram",
    bounds=DECISION_BOUNDS_S,
)
PREFIX_TOKENS: Final = Family(
    "tidegate_prefix_tokens_total",
    "Prompt tokens that the index said were cached, and those that the engine then said.",
    ("pool", "backend"),
    split_label="said_by",
    split=SAID_BY,
)
QUEUE_WAIT: Final = Family(
    "tidegate_queue_wait_seconds",
    "Waiting for room on a backend, of requests that got it.",
    ("pool",),
    ("class",),
    closed_combinations=len(WORDS),
    kind="histogram",
    bounds=DURATION_BOUNDS_S,
)
QUEUE_REFUSED: Final = Family(
    "tidegate_queue_refused_total",
    "Requests whose wait for room ended without it, or did not begin.",
    ("pool",),
    ("class",),
    closed_combinations=len(WORDS),
    split_label="reason",
    split=REFUSALS,
)
PULLED_BACK: Final = Family(
    "tidegate_queue_pulled_back_total",
    "Requests that gave their place on a backend to a more urgent one.",
    ("pool",),
    ("class",),
    closed_combinations=len(WORDS),
)
DEGRADED: Final = Family(
    "tidegate_degraded_total",
    "Steps that overloaded requests went down on their tenant's ladder, by the model that they asked for.",
    ("model",),
    split_label="step",
    split=STEPS,
)
FALLBACKS: Final = Family(
    "tidegate_fallbacks_total",
    "Requests that went on to another model because one could not answer, as their policy says.",
    ("from", "to"),
    split_label="on",
    split=CONDITIONS,
)
PROMISED: Final = Family(
    "tidegate_slo_requests_total",
    "Streamed requests of tenants that were promised something, and whether it was so.",
    ("model",),
    ("slo",),
    closed_combinations=len(SERVICE_LEVELS),
    split_label="met",
    split=("true", "false"),
)
GOODPUT_REQUESTS: Final = Family(
    "tidegate_goodput_requests_total",
    "Requests of tenants that were promised something, and whether all of it was so.",
    ("model", "tenant"),
    split_label="met",
    split=("true", "false"),
)
GOODPUT_TOKENS: Final = Family(
    "tidegate_goodput_tokens_total",
    "Completion tokens of these requests.",
    ("model", "tenant"),
    split_label="met",
    split=("true", "false"),
)
GEN_AI_DURATION: Final = Family(
    "gen_ai_server_request_duration_seconds",
    "From the request's head to the end of its answer, as OpenTelemetry names it.",
    ("gen_ai_request_model", "gen_ai_response_model", "gen_ai_provider_name", "gen_ai_operation_name"),
    ("error_type",),
    closed_combinations=len(ERROR_TYPES),
    kind="histogram",
    bounds=GEN_AI_DURATION_BOUNDS_S,
)
GEN_AI_TTFT: Final = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "From the request's last byte to the first event of the answer, as OpenTelemetry names it.",
    ("gen_ai_request_model", "gen_ai_response_model", "gen_ai_provider_name", "gen_ai_operation_name"),
    kind="histogram",
    bounds=GEN_AI_TTFT_BOUNDS_S,
)
GEN_AI_TPOT: Final = Family(
    "gen_ai_server_time_per_output_token_seconds",
    "Per streamed answer the mean time between two tokens, as OpenTelemetry names it.",
    ("gen_ai_request_model", "gen_ai_response_model", "gen_ai_provider_name", "gen_ai_operation_name"),
    kind="histogram",
    bounds=GEN_AI_TPOT_BOUNDS_S,
)
GEN_AI_TOKENS: Final = Family(
    "gen_ai_client_token_usage",
    "Tokens of each request, as engines report them and OpenTelemetry names them.",
    ("gen_ai_request_model", "gen_ai_response_model", "gen_ai_provider_name", "gen_ai_operation_name"),
    ("gen_ai_token_type",),
    closed_combinations=2,
    kind="histogram",
    bounds=GEN_AI_TOKEN_BOUNDS,
)
TTFT_RATIO: Final = Family(
    "tidegate_ttft_prediction_ratio",
    "Time to the first token as measured, divided by the predicted one.",
    ("pool", "backend"),
    kind="histogram",
    bounds=RATIO_BOUNDS,
)
LOOP_LAG: Final = Family(
    "tidegate_loop_lag_seconds",
    "How late the worker's event loop runs a timer, four samples a second.",
    ("worker",),
    kind="histogram",
    bounds=LAG_BOUNDS_S,
)
BACKEND_TOKENS: Final = Family(
    "tidegate_backend_tokens_total",
    "Tokens that the backend reported; cached is part of prompt.",
    ("pool", "backend"),
    split_label="type",
    split=("prompt", "cached", "completion"),
)
ANSWERS: Final = Family(
    "tidegate_answers_total",
    "Whole generated answers, and those that the model or a filter refused to give.",
    ("model", "pool"),
    split_label="result",
    split=("given", "declined"),
)
ANSWER_TOKENS: Final = Family(
    "tidegate_answer_tokens",
    "Completion tokens of whole answers.",
    ("model", "pool"),
    kind="histogram",
    bounds=ANSWER_BOUNDS_TOKENS,
)
ANSWER_LANGUAGES: Final = Family(
    "tidegate_answer_languages_total", "Sampled answers by their language, where drift.languages says so.", ("model", "language")
)
ANSWER_SURPRISAL: Final = Family(
    "tidegate_answer_surprisal_nats",
    "Minus the mean log-probability of an answer's tokens, where the caller asked for log-probabilities.",
    ("model", "pool"),
    kind="histogram",
    bounds=SURPRISAL_BOUNDS_NATS,
)
ANSWERS_NOT_JUDGED: Final = Family(
    "tidegate_answers_not_judged_total", "Answers whose language or log-probabilities were not read, because too many others waited for it."
)
CONNECTION_REFUSALS: Final = ("untrusted_proxy", "proxy_header", "address")
REFUSED_CONNECTIONS: Final = Family(
    "tidegate_refused_connections_total",
    "Connections of the data port that were closed without an answer.",
    split_label="reason",
    split=CONNECTION_REFUSALS,
)
DESTINATIONS: Final = Family(
    "tidegate_destination_endpoints_total",
    "Requests whose head names engines (x-gateway-destination-endpoint).",
    split_label="outcome",
    split=DESTINATION_OUTCOMES,
)
PICKS: Final = Family(
    "tidegate_picks_total",
    "Requests for which a proxy asked the endpoint picker for an engine.",
    split_label="outcome",
    split=PICK_OUTCOMES,
)
LOOKED_UP: Final = Family(
    "tidegate_cache_lookups_total",
    "Requests that the answer cache might have answered, by what it had.",
    ("tenant",),
    split_label="result",
    split=CACHE_RESULTS,
)
CACHE_BYPASSED: Final = Family(
    "tidegate_cache_bypassed_total",
    "Requests that passed by the answer cache.",
    ("tenant",),
    split_label="reason",
    split=CACHE_BYPASSES,
)
CACHE_NOT_KEPT: Final = Family(
    "tidegate_cache_not_kept_total",
    "Misses of the answer cache whose answers were not kept.",
    ("tenant",),
    split_label="reason",
    split=NOT_KEPT,
)
CACHE_SIMILAR: Final = Family(
    "tidegate_cache_similar_missed_total",
    "Requests that were looked up among similar questions, or would have been, and got no answer there.",
    ("tenant",),
    split_label="reason",
    split=SIMILAR_REASONS,
)
CACHE_SAVED: Final = Family(
    "tidegate_cache_saved_tokens_total",
    "Tokens of hits that no engine computed.",
    ("tenant",),
    split_label="type",
    split=("prompt", "completion"),
)
CACHE_SAVED_COST: Final = Family(
    "tidegate_cache_saved_nanousd_total", "What hits would have cost more at an engine, in nano-dollars.", ("tenant",)
)
GUARD_VERDICTS: Final = Family(
    "tidegate_guard_verdicts_total",
    "Requests that guard rules looked at, or at whose answers they did, by what the rules said in all.",
    ("tenant",),
    split_label="verdict",
    split=GUARD_WORDS,
)
GUARD_FINDINGS: Final = Family(
    "tidegate_guard_findings_total",
    "Findings of guard rules in texts of requests and answers.",
    ("tenant", "rule"),
    ("mode", "direction"),
    closed_combinations=len(GUARD_MODES) * len(GUARD_DIRECTIONS),
)
GUARD_FAILURES: Final = Family(
    "tidegate_guard_failures_total", "Requests and answers that a guard rule could not judge.", ("tenant", "rule")
)
DETECTOR_RESULTS: Final = ("answered", "remembered", "joined", "timeouts", "open", "busy", "errors", "unreadable")
"""What became of questions to a detector, by the names of the counts that the detector keeps itself."""
DETECTOR_QUESTIONS: Final = Family(
    "tidegate_guard_detector_questions_total",
    "Questions to a detector of guard rules.",
    ("detector",),
    split_label="result",
    split=DETECTOR_RESULTS,
)
DETECTOR_SECONDS: Final = Family(
    "tidegate_guard_detector_seconds_total", "Time that questions took that a detector was asked.", ("detector",)
)
INDEX_LOSSES: Final = ("evicted", "away", "lost")
"""Fields of `cache.semantic.ports.IndexFigures`."""
CACHE_INDEX_LOST: Final = Family(
    "tidegate_cache_index_losses_total",
    "Questions that the index of similar questions did not keep, or was not asked for in time.",
    split_label="reason",
    split=INDEX_LOSSES,
)
CACHE_LOSSES: Final = ("evicted", "away", "lost", "refused")
"""Fields of `cache.ports.StoreFigures`."""
CACHE_LOST: Final = Family(
    "tidegate_cache_store_losses_total",
    "Answers that the store of the answer cache did not keep or give.",
    split_label="reason",
    split=CACHE_LOSSES,
)
TRACE_RESULTS: Final = ("sent", "dropped", "rejected", "failed")
"""What became of traces, as `gateway.telemetry.otlp.RESULTS`."""
TRACES: Final = Family("tidegate_traces_total", "Traced requests, by exporter.", ("exporter",), split_label="result", split=TRACE_RESULTS)
INDEX_EVICTED: Final = Family("tidegate_index_evicted_blocks_total", "Blocks that the index of prefixes had no room for.")
SHARED: Final = Family(
    "tidegate_shared_dispatches_total",
    "Dispatches that workers of this host told each other of.",
    split_label="result",
    split=SHARED_RESULTS,
)
SHARED_BYTES: Final = Family(
    "tidegate_siblings_bytes_total",
    "Bytes that workers sent to each other, those to other hosts once for all of them.",
    split_label="direction",
    split=SIBLING_BYTES,
)
SHARED_LOST: Final = Family(
    "tidegate_siblings_lost_messages_total",
    "Messages between workers of this host that did not arrive or could not be read.",
    split_label="reason",
    split=SIBLING_LOSSES,
)

FAMILIES: Final = (
    REQUESTS,
    CLASSES,
    DURATION,
    OVERHEAD,
    TTFT,
    INTER_TOKEN,
    TPOT,
    TOKENS,
    ATTEMPTS,
    HOLDS,
    MISREPORTED,
    LORA_REQUESTS,
    LORA_CALLS,
    SHARED_REQUESTS,
    HEDGES,
    CONTINUED,
    KV_BATCHES,
    KV_GAPS,
    TOKEN_CHECKS,
    LEDGER,
    FEEDBACK_GIVEN,
    JUDGE_SAMPLES,
    JUDGE_SCORES,
    JUDGE_PAIRS,
    JUDGE_TOKENS,
    BATCH_LINES,
    LOAD_REPORTS,
    LOAD_GAPS,
    COST,
    AUDIO_SECONDS,
    AUDIO_BYTES,
    SOFT_CROSSED,
    GIVEN_UP,
    CROWDED,
    CORRECTED,
    DECISIONS,
    DECISION_TIME,
    PREFIX_TOKENS,
    CACHE_LOST,
    CACHE_INDEX_LOST,
    INDEX_EVICTED,
    SHARED,
    SHARED_BYTES,
    SHARED_LOST,
    QUEUE_WAIT,
    QUEUE_REFUSED,
    PULLED_BACK,
    DEGRADED,
    FALLBACKS,
    PROMISED,
    GOODPUT_REQUESTS,
    GOODPUT_TOKENS,
    GEN_AI_DURATION,
    GEN_AI_TTFT,
    GEN_AI_TPOT,
    GEN_AI_TOKENS,
    TTFT_RATIO,
    LOOP_LAG,
    BACKEND_TOKENS,
    ANSWERS,
    ANSWER_TOKENS,
    ANSWER_LANGUAGES,
    ANSWER_SURPRISAL,
    ANSWERS_NOT_JUDGED,
    REFUSED_CONNECTIONS,
    DESTINATIONS,
    PICKS,
    LOOKED_UP,
    CACHE_BYPASSED,
    CACHE_NOT_KEPT,
    CACHE_SIMILAR,
    CACHE_SAVED,
    CACHE_SAVED_COST,
    GUARD_VERDICTS,
    GUARD_FINDINGS,
    GUARD_FAILURES,
    DETECTOR_QUESTIONS,
    DETECTOR_SECONDS,
    TRACES,
)
