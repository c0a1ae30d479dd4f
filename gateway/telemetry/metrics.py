"""Counts finished requests. One `Metrics` per worker process; `observe` reads each closed Record once.

On the hot path there are only dicts, lists and `bisect`: how numbers become Prometheus text is `telemetry.exposition`,
which runs in the admin process. Knows nothing of HTTP, sockets or the reader of a snapshot.

The numbers of a family are `telemetry.cells.Cells`. What another process gets of them is `telemetry.snapshot`.

Bounds (requirement R38): label values come from closed sets or bounded name sets, and every family has a ceiling of
`MAX_SERIES` exposed series. At the ceiling the least important labels become `_other`; nothing is refused or lost.

Size: what one request adds to each family, in one place.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec

from backends.lora.loader import LoadDone
from cache.ports import StoreFigures
from cache.semantic.ports import IndexFigures
from gateway.guards.facts import GuardCount
from gateway.ledger.reconcile import LimitsState
from gateway.placement.shared_dispatches import SharedFigures
from gateway.process.sibling_bus import BusFigures
from gateway.record import OK, Record
from gateway.telemetry.cells import (
    MAX_LABEL_CHARS,
    MAX_NAMES,
    Cells,
    count_answer,
    count_cache,
    count_finding,
    count_guards,
    count_policy,
    count_steps,
    count_wait,
    model_label,
    named,
)
from gateway.telemetry.exemplars import Slots, note, rows_of
from gateway.telemetry.families import (
    ANSWER_LANGUAGES,
    ANSWER_SURPRISAL,
    ANSWER_TOKENS,
    ANSWERS,
    ANSWERS_NOT_JUDGED,
    ATTEMPTS,
    AUDIO_BYTES,
    AUDIO_SECONDS,
    BACKEND_TOKENS,
    BATCH_LINE_OUTCOMES,
    BATCH_LINES,
    CACHE_INDEX_LOST,
    CACHE_LOSSES,
    CACHE_LOST,
    CLASS_RESULT_AT,
    CLASSES,
    CLOSING_AT,
    CONNECTION_REFUSALS,
    CONTINUED,
    CORRECTED,
    COST,
    CROWDED,
    DECIDED,
    DECISION_BOUNDS_S,
    DECISION_TIME,
    DECISIONS,
    DESTINATION_OUTCOMES,
    DESTINATIONS,
    DETECTOR_QUESTIONS,
    DETECTOR_RESULTS,
    DETECTOR_SECONDS,
    DURATION,
    DURATION_BOUNDS_S,
    ENDPOINTS,
    FAMILIES,
    FEEDBACK_GIVEN,
    GIVEN_UP,
    HEDGES,
    HOLDS,
    INDEX_EVICTED,
    INDEX_LOSSES,
    INTER_TOKEN,
    JUDGE_OUTCOMES,
    JUDGE_PAIRS,
    JUDGE_SAMPLES,
    JUDGE_SCORES,
    JUDGE_TOKENS,
    KV_BATCHES,
    KV_GAPS,
    LAG_BOUNDS_S,
    LEDGER,
    LOAD_GAPS,
    LOAD_REPORTS,
    LOOP_LAG,
    LORA_CALL_WORDS,
    LORA_CALLS,
    LORA_REQUESTS,
    MAX_SERIES,
    MISREPORTED,
    NONE,
    OTHER,
    OUTCOMES,
    OVERHEAD,
    OVERHEAD_BOUNDS_S,
    PICK_OUTCOMES,
    PICKS,
    PREFIX_TOKENS,
    RATIO_BOUNDS,
    REFUSED_CONNECTIONS,
    REQUESTS,
    SHARED,
    SHARED_BYTES,
    SHARED_LOST,
    SHARED_REQUESTS,
    SOFT_CROSSED,
    STATUS_CLASSES,
    SURPRISAL_BOUNDS_NATS,
    TOKEN_CHECKS,
    TOKEN_OUTCOMES,
    TOKENS,
    TPOT,
    TPOT_BOUNDS_S,
    TRACES,
    TTFT,
    TTFT_BOUNDS_S,
    TTFT_RATIO,
    Family,
)
from gateway.telemetry.gen_ai import GENERATING, OPERATIONS, GenAiCells, count_gen_ai, gen_ai_cells
from gateway.telemetry.snapshot import FamilyNumbers, MetricsSnapshot
from guardrails.policy import Direction
from guardrails.verdict import GuardVerdict
from routing.schedule import Route
from tenancy.feedback import RATINGS
from tenancy.jwt import JwtOutcome

MAX_BOUND: Final = 4096
"""Label combinations whose cells are looked up with one dict access. A cache: when full it is emptied and refilled."""
SETTLED: Final = "settle"
"""The closing of a hold by the engine's own counts of tokens."""
_OUTCOME_AT: Final = {JwtOutcome(word): at for at, word in enumerate(TOKEN_OUTCOMES)}


_Key = tuple[str, str, str, str, str, str, int, str, str]
_DECIDED_AT: Final = {by: at for at, by in enumerate(DECIDED)}
_Bound = tuple[
    list[float],
    tuple[list[float], int],
    list[float],
    list[float],
    list[float],
    list[float],
    list[float],
    list[float],
    list[float],
    list[float] | None,
    GenAiCells | None,
    list[float] | None,
    tuple[list[float], list[float]] | None,
    tuple[Slots, Slots, Slots],
]
"""The cells of one label combination: requests, class results with the index of the result, duration, overhead, time to first token,
inter-token gaps, time per output token, tokens, cost, attempts (None without a backend), OpenTelemetry's (None for what is no operation of
a model), tokens of the backend, answers and their lengths (None for what is no whole generated answer); and exemplars of duration, time to
first token and time per output token."""


class Metrics:
    """The counters of one worker. Not thread-safe: the event loop's thread owns it.

    Args:
        models: public model names that get a label of their own; `know` replaces them.
        max_series: ceiling of exposed series per family.
        providers: the dialect of each pool's engines, as OpenTelemetry's name of the provider.
    """

    __slots__ = (
        "_backends",
        "_bound",
        "_cells",
        "_decided",
        "_holds",
        "_loras",
        "_models",
        "_pools",
        "_providers",
        "_rules",
        "_tenants",
        "connections",
        "in_flight",
    )

    def __init__(self, models: Iterable[str] = (), max_series: int = MAX_SERIES, *, providers: Mapping[str, str] | None = None) -> None:
        self.in_flight = 0
        """Requests begun and not closed; written by the edge, so that the hot path has no call for it."""
        self.connections = 0
        """Open connections of callers; written by the edge."""
        self._cells = {family.name: Cells(family, max_series) for family in FAMILIES}
        self._holds = self._cells[HOLDS.name].cell(())
        self._bound: dict[_Key, _Bound] = {}
        self._decided: dict[str, tuple[list[float], list[float]]] = {}
        """The cells of each routing policy: seconds per decision, and counts of decisions."""
        self._models: frozenset[str] = frozenset()
        self._providers = providers or {}
        self._pools: set[str] = set()
        self._backends: set[str] = set()
        self._tenants: set[str] = set()
        self._loras: set[str] = set()
        self._rules: set[str] = set()
        self.know(models)

    def know(self, models: Iterable[str]) -> None:
        """Sets the model names that get a label of their own (the first `MAX_NAMES`); call when the policy changes."""
        self._models = frozenset(islice(models, MAX_NAMES))
        self._bound.clear()

    def observe(self, record: Record) -> None:
        """Counts one finished request. Costs about 2.5 us plain and 4 us streamed; never raises on odd label values."""
        key = (
            record.model,
            record.endpoint,
            record.outcome,
            record.tenant,
            record.pool,
            record.backend,
            record.status,
            record.priority_class,
            record.asked_model,
        )
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bind(key)
        requests, (results, at), duration, overhead, ttft, inter_token, tpot, tokens, cost, attempts, gen_ai, served, answered, _ = bound
        requests[0] += 1
        results[at] += 1
        duration[bisect_left(DURATION_BOUNDS_S, record.duration_s)] += 1
        duration[-1] += record.duration_s
        overhead[bisect_left(OVERHEAD_BOUNDS_S, record.overhead_s)] += 1
        overhead[-1] += record.overhead_s
        if attempts is not None and record.attempts:
            attempts[0] += 1
        if record.failed or record.prefill or record.hedged or record.queued or record.steps or record.lora or record.soft_limits:
            self._observe_rare(record)
        if record.reported:
            self._cells[MISREPORTED.name].cell((named(record.pool, self._pools), named(record.backend, self._backends)))[0] += 1
        if record.cache:
            count_cache(self._cells, record, named(record.tenant, self._tenants))
        if record.guards is not None:
            count_guards(self._cells, record.guards, named(record.tenant, self._tenants), self._rules)
        if record.fell_back or record.promises:
            count_policy(self._cells, record, self._models, named(record.tenant, self._tenants))
        for step in record.fell_back:
            if step.guards is not None:
                count_guards(self._cells, step.guards, named(record.tenant, self._tenants), self._rules)
        if record.closing in CLOSING_AT:
            self._holds[CLOSING_AT[record.closing]] += 1
        cost[0] += record.cost_nanousd
        usage = record.usage
        if usage.audio_bytes:
            place = (model_label(record.model, self._models), named(record.tenant, self._tenants))
            self._cells[AUDIO_SECONDS.name].cell(place)[0] += usage.audio_seconds
            self._cells[AUDIO_BYTES.name].cell(place)[0] += usage.audio_bytes
        settled = record.closing == SETTLED  # engines' own counts only; estimates are in the access log
        if settled:
            tokens[0] += usage.prompt_tokens
            tokens[1] += usage.cached_tokens
            tokens[2] += usage.completion_tokens
            tokens[3] += usage.reasoning_tokens
            if served is not None:
                served[0] += usage.prompt_tokens
                served[1] += usage.cached_tokens
                served[2] += usage.completion_tokens
        if gen_ai is not None:
            count_gen_ai(gen_ai, record, settled=settled)
        if answered is not None:
            count_answer(*answered, record)
        if record.trace_id:
            self._note_exemplars(bound, record)
        first = record.ttft_s
        if first is None:
            return
        ttft[bisect_left(TTFT_BOUNDS_S, first)] += 1
        ttft[-1] += first
        if record.gaps and record.decode_s is not None:
            self._observe_gaps(record.gaps, record.decode_s, usage.completion_tokens, inter_token, tpot)

    def _observe_rare(self, record: Record) -> None:
        """Counts the properties that few requests have."""
        beaten = tuple([backend for backend in record.hedged if backend != record.backend and backend not in record.failed])
        if record.hedged:
            self._cells[HEDGES.name].cell((named(record.pool, self._pools),))[record.backend != record.hedged[1]] += 1
        if record.continued:
            self._cells[CONTINUED.name].cell((named(record.pool, self._pools),))[record.outcome != OK] += 1
        for backend in record.failed + beaten:  # another backend answered; the last attempt is counted with its request
            self._cells[ATTEMPTS.name].cell((named(record.pool, self._pools), named(backend, self._backends)))[0] += 1
        if record.prefill:
            pair = named(record.pool, self._pools), named(record.prefill, self._backends)
            self._cells[SHARED_REQUESTS.name].cell(pair)[record.outcome != OK] += 1
        if record.queued:
            count_wait(self._cells, record, named(record.pool, self._pools))
        if record.steps:
            count_steps(self._cells, record, self._models)
        if record.lora:
            names = (named(record.lora, self._loras), named(record.pool, self._pools))
            self._cells[LORA_REQUESTS.name].cell(names)[record.outcome != OK] += 1
        if record.soft_limits:
            self._cells[SOFT_CROSSED.name].cell((named(record.tenant, self._tenants),))[0] += len(record.soft_limits)

    @staticmethod
    def _observe_gaps(gaps: tuple[int, ...], decode_s: float, completion_tokens: int, inter_token: list[float], tpot: list[float]) -> None:
        for at, count in enumerate(gaps):
            if count:
                inter_token[at] += count
        inter_token[-1] += decode_s  # the gaps add up to exactly first-to-last
        if completion_tokens > 1:
            per_token = decode_s / (completion_tokens - 1)
            tpot[bisect_left(TPOT_BOUNDS_S, per_token)] += 1
            tpot[-1] += per_token

    @staticmethod
    def _note_exemplars(bound: _Bound, record: Record) -> None:
        durations, first_tokens, per_token = bound[-1]
        trace_id, at_unix = record.trace_id, record.at_unix + record.duration_s
        note(durations, bisect_left(DURATION_BOUNDS_S, record.duration_s), trace_id, record.duration_s, at_unix)
        if record.ttft_s is not None:
            note(first_tokens, bisect_left(TTFT_BOUNDS_S, record.ttft_s), trace_id, record.ttft_s, at_unix)
            if record.gaps and record.decode_s is not None and record.usage.completion_tokens > 1:
                each_s = record.decode_s / (record.usage.completion_tokens - 1)
                note(per_token, bisect_left(TPOT_BOUNDS_S, each_s), trace_id, each_s, at_unix)

    def observe_load(self, done: LoadDone) -> None:
        """Counts one load or unload of an adapter."""
        names = (named(done.backend, self._backends), named(done.served, self._loras))
        word = f"{done.act}_failed" if done.why else done.act
        self._cells[LORA_CALLS.name].cell(names)[LORA_CALL_WORDS.index(word)] += 1

    def count_token(self, issuer: str, outcome: JwtOutcome) -> None:
        """Counts one verification of a JWT; `issuer` is a configured issuer, or empty."""
        self._cells[TOKEN_CHECKS.name].cell((issuer[:MAX_LABEL_CHARS] or NONE,))[_OUTCOME_AT[outcome]] += 1

    def count_kv_events(self, pool: str, backend: str, batches: int, gaps: int) -> None:
        """Counts the batches of KV events that a backend published, and the gaps between them."""
        if batches or gaps:
            labels = (named(pool, self._pools), named(backend, self._backends))
            self._cells[KV_BATCHES.name].cell(labels)[0] += batches
            self._cells[KV_GAPS.name].cell(labels)[0] += gaps

    def count_refused_connection(self, reason: str) -> None:
        """Counts a connection that was closed without an answer."""
        self._cells[REFUSED_CONNECTIONS.name].cell(())[CONNECTION_REFUSALS.index(reason)] += 1

    def count_destination(self, outcome: str) -> None:
        """Counts a request whose head names engines by what became of that, one of `DESTINATION_OUTCOMES`."""
        self._cells[DESTINATIONS.name].cell(())[DESTINATION_OUTCOMES.index(outcome)] += 1

    def count_pick(self, outcome: str) -> None:
        """Counts a request of the endpoint picker by its outcome, one of `PICK_OUTCOMES`."""
        self._cells[PICKS.name].cell(())[PICK_OUTCOMES.index(outcome)] += 1

    def count_feedback(self, tenant: str, rating: str) -> None:
        """Counts a caller's rating of an answer."""
        self._cells[FEEDBACK_GIVEN.name].cell((tenant,))[RATINGS.index(rating)] += 1

    def count_judge_sample(self, outcome: str) -> None:
        """Counts a sample of the judge by what became of it, one of `JUDGE_OUTCOMES`."""
        self._cells[JUDGE_SAMPLES.name].cell(())[JUDGE_OUTCOMES.index(outcome)] += 1

    def count_judge_score(self, tenant: str, model: str, score: int) -> None:
        """Counts an answer that the judge scored."""
        self._cells[JUDGE_SCORES.name].cell((tenant, model))[score - 1] += 1

    def count_judge_pair(self, model: str, outcome: str) -> None:
        """Counts a pair of answers that the judge compared, by one of `PAIR_OUTCOMES`."""
        self._cells[JUDGE_PAIRS.name].cell((model,))[JUDGE_PAIRS.split.index(outcome)] += 1

    def count_judge_tokens(self, tokens: int) -> None:
        """Counts tokens of the judge's requests."""
        self._cells[JUDGE_TOKENS.name].cell(())[0] += tokens

    def count_batch_lines(self, outcome: str, lines: int = 1) -> None:
        """Counts requests of batches that have a result now, or are sent again; `outcome` is one of `BATCH_LINE_OUTCOMES`."""
        self._cells[BATCH_LINES.name].cell(())[BATCH_LINE_OUTCOMES.index(outcome)] += lines

    def set_ledger(self, written: int, dropped: int) -> None:
        """Sets the counts of the usage log, which counts for itself: events written and dropped since the start."""
        self._cells[LEDGER.name].cell(())[:] = (written, dropped)

    def set_limits(self, limits: LimitsState) -> None:
        """Sets the counts of the limit counters, which count for themselves."""
        self._cells[GIVEN_UP.name].cell(())[0] = limits.given_up
        self._cells[CROWDED.name].cell(())[0] = limits.crowded
        if limits.reconciled is not None:
            self._cells[CORRECTED.name].cell(())[:] = (limits.reconciled.raised, limits.reconciled.lowered)

    def observe_decision(self, route: Route, took_s: float) -> None:
        """Counts one routing decision and the seconds it took."""
        cells = self._decided.get(route.policy)
        if cells is None:
            key = (route.policy,)
            cells = self._decided[route.policy] = (self._cells[DECISION_TIME.name].cell(key), self._cells[DECISIONS.name].cell(key))
        times, decided = cells
        times[bisect_left(DECISION_BOUNDS_S, took_s)] += 1
        times[-1] += took_s
        decided[_DECIDED_AT[(route.why or "cost") if route.ranked else "nobody"]] += 1

    def count_prefix(self, pool: str, backend: str, predicted: float, actual: int) -> None:
        """Counts the cached tokens of one prompt: predicted by the prefix index, and reported by the engine."""
        cell = self._cells[PREFIX_TOKENS.name].cell((named(pool, self._pools), named(backend, self._backends)))
        cell[0] += predicted
        cell[1] += actual

    def count_first_token(self, pool: str, backend: str, predicted_s: float, actual_s: float) -> None:
        """Counts the time to the first token of one answer against the time that routing predicted when it sent the request."""
        if predicted_s > 0.0:
            ratio = actual_s / predicted_s
            cell = self._cells[TTFT_RATIO.name].cell((named(pool, self._pools), named(backend, self._backends)))
            cell[bisect_left(RATIO_BOUNDS, ratio)] += 1
            cell[-1] += ratio

    def count_lag(self, worker: int, lag_s: float) -> None:
        """Counts how late the event loop ran a timer."""
        cell = self._cells[LOOP_LAG.name].cell((str(worker),))
        cell[bisect_left(LAG_BOUNDS_S, lag_s)] += 1
        cell[-1] += lag_s

    def count_language(self, model: str, language: str) -> None:
        """Counts a sampled answer in a language, by its code of ISO 639-1; `_none` where none is likely enough."""
        self._cells[ANSWER_LANGUAGES.name].cell((model_label(model, self._models), language[:MAX_LABEL_CHARS] or NONE))[0] += 1

    def count_surprisal(self, model: str, pool: str, nats: float) -> None:
        """Counts minus the mean log-probability of one answer's tokens."""
        cell = self._cells[ANSWER_SURPRISAL.name].cell((model_label(model, self._models), named(pool, self._pools)))
        cell[bisect_left(SURPRISAL_BOUNDS_NATS, nats)] += 1
        cell[-1] += nats

    def count_not_judged(self) -> None:
        """Counts an answer that was to be sampled, and was not judged because too many others waited."""
        self._cells[ANSWERS_NOT_JUDGED.name].cell(())[0] += 1

    def set_answers(self, figures: StoreFigures, index: IndexFigures | None = None) -> None:
        """Sets the numbers that the store of the answer cache, and the index of similar questions, count for themselves since the start."""
        self._cells[CACHE_LOST.name].cell(())[:] = [getattr(figures, reason) for reason in CACHE_LOSSES]
        if index is not None:
            self._cells[CACHE_INDEX_LOST.name].cell(())[:] = [getattr(index, reason) for reason in INDEX_LOSSES]

    def set_detector(self, detector: str, results: Mapping[str, int], seconds: float) -> None:
        """Sets the numbers that one detector counts for itself since the start.

        Args:
            results: numbers of questions, by `DETECTOR_RESULTS`.
            seconds: the time of all questions that the detector was asked.
        """
        name = detector[:MAX_LABEL_CHARS]
        self._cells[DETECTOR_QUESTIONS.name].cell((name,))[:] = [results[word] for word in DETECTOR_RESULTS]
        self._cells[DETECTOR_SECONDS.name].cell((name,))[0] = seconds

    def set_traces(self, figures: Mapping[str, tuple[int, ...]]) -> None:
        """Sets what became of traces since the start, by exporter; each exporter counts for itself, by `TRACE_RESULTS`."""
        for exporter, counts in figures.items():
            self._cells[TRACES.name].cell((exporter,))[:] = counts

    def count_late_findings(self, tenant: str, direction: Direction, verdict: GuardVerdict) -> None:
        """Counts what detectors found in an answer after its request had been recorded; such rules flag or shadow."""
        for found in verdict.findings:
            count = GuardCount(found.rule, found.kind, found.mode, direction, 1)
            count_finding(self._cells, count, named(tenant, self._tenants), self._rules)

    def set_index(self, evicted: int) -> None:
        """Sets the number of blocks that the prefix index has evicted since the start; the index counts for itself."""
        self._cells[INDEX_EVICTED.name].cell(())[0] = evicted

    def set_siblings(self, shared: SharedFigures, bus: BusFigures) -> None:
        """Sets what the worker told and heard of its siblings since the start; both count for themselves."""
        self._cells[SHARED.name].cell(())[:] = shared
        self._cells[SHARED_BYTES.name].cell(())[:] = (bus.sent_bytes, bus.received_bytes)
        self._cells[SHARED_LOST.name].cell(())[:] = (bus.missed, bus.unreadable)

    def count_load_reports(self, pool: str, backend: str, reports: int, gaps: int) -> None:
        """Counts the load reports that a backend pushed, and the gaps between them."""
        if reports or gaps:
            labels = (named(pool, self._pools), named(backend, self._backends))
            self._cells[LOAD_REPORTS.name].cell(labels)[0] += reports
            self._cells[LOAD_GAPS.name].cell(labels)[0] += gaps

    def snapshot(self, access_log_dropped: int = 0) -> MetricsSnapshot:
        """A copy of all numbers; `access_log_dropped` comes from the access log of the same process."""
        families = list(self.families())
        return msgspec.structs.replace(
            self.totals(access_log_dropped),
            families={family.name: family.rows for family in families},
            exemplars={family.name: family.exemplars for family in families if family.exemplars},
        )

    def sums(self, families: Iterable[Family]) -> dict[str, list[float]]:
        """The sum of all cells of each family, by its name."""
        return {family.name: self._cells[family.name].total() for family in families}

    def totals(self, access_log_dropped: int = 0) -> MetricsSnapshot:
        """All numbers that are of no family."""
        return MetricsSnapshot(in_flight=self.in_flight, connections=self.connections, access_log_dropped=access_log_dropped)

    def families(self) -> Iterator[FamilyNumbers]:
        """A copy of each family, made when it is asked for."""
        for name, cells in self._cells.items():
            yield FamilyNumbers(name, cells.rows(), rows_of(cells.exemplars))

    def _bind(self, key: _Key) -> _Bound:
        name, path, word, owner, pool_id, backend_id, status, priority_class, asked = key
        model = model_label(name, self._models)
        endpoint = NONE if not path else path if path in ENDPOINTS else OTHER
        outcome = word if word in OUTCOMES else OTHER
        status_class = STATUS_CLASSES[status // 100 - 1] if 100 <= status < 600 else OTHER
        tenant = named(owner, self._tenants)
        pool = named(pool_id, self._pools)
        backend = named(backend_id, self._backends) if backend_id else NONE
        operation = OPERATIONS.get(path)
        models = (model_label(asked or name, self._models), model)
        cells = self._cells
        bound = (
            cells[REQUESTS.name].cell((model, endpoint, outcome, status_class)),
            (cells[CLASSES.name].cell((priority_class,)) if priority_class else [0.0] * CLASSES.width, CLASS_RESULT_AT.get(word, 0)),
            cells[DURATION.name].cell((model, endpoint)),
            cells[OVERHEAD.name].cell((endpoint,)),
            cells[TTFT.name].cell((model, pool)),
            cells[INTER_TOKEN.name].cell((model, pool)),
            cells[TPOT.name].cell((model, pool)),
            cells[TOKENS.name].cell((model, tenant)),
            cells[COST.name].cell((model, tenant)),
            cells[ATTEMPTS.name].cell((pool, backend)) if backend_id else None,
            gen_ai_cells(cells, models, self._providers.get(pool_id, NONE), operation, word) if operation and name else None,
            cells[BACKEND_TOKENS.name].cell((pool, backend)) if backend_id else None,
            (cells[ANSWERS.name].cell((model, pool)), cells[ANSWER_TOKENS.name].cell((model, pool)))
            if backend_id and word == OK and operation in GENERATING
            else None,
            (cells[DURATION.name].slots((model, endpoint)), cells[TTFT.name].slots((model, pool)), cells[TPOT.name].slots((model, pool))),
        )
        if len(self._bound) >= MAX_BOUND:
            self._bound.clear()
        self._bound[key] = bound
        return bound
