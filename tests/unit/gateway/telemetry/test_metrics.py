"""Counting: every Record once, in the right place, under a ceiling that no caller can break."""

import random
from bisect import bisect_left

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.lora.loader import LoadDone
from cache.ports import StoreFigures
from domain.faults import Kind
from domain.usage import Usage
from gateway.guards.facts import GuardCount, GuardRecord
from gateway.placement.destination import DESTINATION
from gateway.record import GAP_BOUNDS_S, Fell, Record
from gateway.telemetry.cells import MAX_NAMES, Cells
from gateway.telemetry.families import (
    ANSWER_BOUNDS_TOKENS,
    ANSWER_LANGUAGES,
    ANSWER_SURPRISAL,
    ANSWER_TOKENS,
    ANSWERS,
    ANSWERS_NOT_JUDGED,
    ATTEMPTS,
    BACKEND_TOKENS,
    CACHE_LOST,
    CLASSES,
    DECIDED,
    DECISION_TIME,
    DECISIONS,
    DETECTOR_QUESTIONS,
    DETECTOR_RESULTS,
    DETECTOR_SECONDS,
    DURATION,
    DURATION_BOUNDS_S,
    FAMILIES,
    GEN_AI_DURATION_BOUNDS_S,
    GEN_AI_TOKEN_BOUNDS,
    GEN_AI_TPOT_BOUNDS_S,
    GEN_AI_TTFT_BOUNDS_S,
    GOODPUT_REQUESTS,
    GOODPUT_TOKENS,
    GUARD_FAILURES,
    GUARD_FINDINGS,
    GUARD_VERDICTS,
    GUARD_WORDS,
    HOLDS,
    INTER_TOKEN,
    LAG_BOUNDS_S,
    LOOP_LAG,
    LORA_CALLS,
    LORA_REQUESTS,
    MAX_SERIES,
    NONE,
    OTHER,
    OVERHEAD_BOUNDS_S,
    PREFIX_TOKENS,
    RATIO_BOUNDS,
    REQUESTS,
    SHARED_REQUESTS,
    SURPRISAL_BOUNDS_NATS,
    TOKEN_CHECKS,
    TOKEN_OUTCOMES,
    TOKENS,
    TPOT,
    TPOT_BOUNDS_S,
    TTFT,
    TTFT_BOUNDS_S,
    TTFT_RATIO,
    Family,
)
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import MetricsSnapshot, merge
from guardrails.verdict import GuardVerdict, Noted
from routing.fleet import Availability, Backend
from routing.schedule import ALONE, HAS_ROOM, Route
from tenancy.jwt import JwtOutcome

PLAIN = Record(
    request_id="req_1",
    at_unix=1.7e9,
    outcome="ok",
    status=200,
    duration_s=0.3,
    overhead_s=0.00004,
    tenant="acme",
    project="web",
    key_id="abcdefghij",
    endpoint="/v1/chat/completions",
    model="llama",
    pool="llama-h100",
    backend="b1",
    attempts=1,
    usage=Usage(100, 20, 64, 5),
    closing="settle",
    ttft_s=0.25,
)
STREAM = msgspec.structs.replace(
    PLAIN, stream=True, events=21, decode_s=0.4, gaps=tuple(20 if at == 5 else 0 for at in range(len(GAP_BOUNDS_S) + 1))
)
REFUSED = Record(request_id="req_2", at_unix=1.7e9, outcome="key_invalid", status=401, duration_s=0.0001, overhead_s=0.0001)


def cell(snapshot: MetricsSnapshot, family: Family, *labels: str) -> list[float]:
    return dict(snapshot.families[family.name])[labels]


def test_a_plain_request_is_counted_in_every_family_that_it_concerns() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(PLAIN)
    seen = metrics.snapshot()
    assert cell(seen, REQUESTS, "llama", "/v1/chat/completions", "ok", "2xx") == [1]
    assert cell(seen, TOKENS, "llama", "acme") == [100, 64, 20, 5]
    assert cell(seen, ATTEMPTS, "llama-h100", "b1") == [1]
    assert cell(seen, HOLDS) == [1, 0, 0, 0]
    duration = cell(seen, DURATION, "llama", "/v1/chat/completions")
    assert duration[bisect_left(DURATION_BOUNDS_S, 0.3)] == 1
    assert duration[-1] == 0.3
    assert cell(seen, TTFT, "llama", "llama-h100")[-1] == 0.25
    assert seen.families[INTER_TOKEN.name] == seen.families[TPOT.name] == []


def test_classes_are_counted_by_whose_side_it_was_and_requests_without_one_in_none() -> None:
    metrics = Metrics(["llama"])
    for outcome, times in (("ok", 3), ("engine_busy", 2), ("invalid_value", 1), ("overloaded", 4)):
        for _ in range(times):
            metrics.observe(msgspec.structs.replace(PLAIN, outcome=outcome, priority_class="batch"))
    metrics.observe(msgspec.structs.replace(PLAIN, priority_class="critical"))
    metrics.observe(REFUSED)
    seen = metrics.snapshot()
    assert CLASSES.split == ("ok", "caller", "gateway", "engine")
    assert cell(seen, CLASSES, "batch") == [3, 1, 4, 2] and cell(seen, CLASSES, "critical") == [1, 0, 0, 0]
    assert len(seen.families[CLASSES.name]) == 2


def test_a_stream_gives_gaps_and_time_per_output_token() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(STREAM)
    seen = metrics.snapshot()
    gaps = cell(seen, INTER_TOKEN, "llama", "llama-h100")
    assert gaps[5] == 20
    assert gaps[-1] == 0.4, "the gaps add up to first-to-last"
    per_token = cell(seen, TPOT, "llama", "llama-h100")
    assert per_token[bisect_left(TPOT_BOUNDS_S, 0.4 / 19)] == 1
    assert per_token[-1] == pytest.approx(0.4 / 19)


def test_a_value_on_a_bound_belongs_to_that_bound() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(msgspec.structs.replace(PLAIN, duration_s=DURATION_BOUNDS_S[3]))
    assert cell(metrics.snapshot(), DURATION, "llama", "/v1/chat/completions")[3] == 1


def test_what_a_refused_request_never_had_is_named_none() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(REFUSED)
    seen = metrics.snapshot()
    assert cell(seen, REQUESTS, "_none", "_none", "key_invalid", "4xx") == [1]
    assert seen.families[TOKENS.name] == seen.families[ATTEMPTS.name] == seen.families[TTFT.name] == []


def test_a_model_is_named_only_while_it_is_configured() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(msgspec.structs.replace(PLAIN, model="qwen"))
    metrics.know(["llama", "qwen"])
    metrics.observe(msgspec.structs.replace(PLAIN, model="qwen"))
    seen = metrics.snapshot()
    for model in ("_other", "qwen"):
        assert cell(seen, REQUESTS, model, "/v1/chat/completions", "ok", "2xx") == [1]


def test_attempts_that_failed_over_are_counted_at_their_backend() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(msgspec.structs.replace(PLAIN, attempts=2, failed=("b0",)))
    rows = dict(metrics.snapshot().families[ATTEMPTS.name])
    assert rows == {("llama-h100", "b0"): [1], ("llama-h100", "b1"): [1]}


def test_every_kind_of_fault_is_an_outcome() -> None:
    metrics = Metrics()
    for kind in Kind:
        metrics.observe(msgspec.structs.replace(REFUSED, outcome=kind.value))
    assert {labels[2] for labels, _ in metrics.snapshot().families[REQUESTS.name]} == {kind.value for kind in Kind}


@pytest.mark.parametrize(
    "bounds",
    [
        *(DURATION_BOUNDS_S, TTFT_BOUNDS_S, TPOT_BOUNDS_S, OVERHEAD_BOUNDS_S, GAP_BOUNDS_S),
        *(GEN_AI_DURATION_BOUNDS_S, GEN_AI_TTFT_BOUNDS_S, GEN_AI_TPOT_BOUNDS_S, GEN_AI_TOKEN_BOUNDS),
        *(RATIO_BOUNDS, LAG_BOUNDS_S, ANSWER_BOUNDS_TOKENS, SURPRISAL_BOUNDS_NATS),
    ],
)
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))


def series(seen: MetricsSnapshot, family: Family) -> int:
    return len(seen.families[family.name]) * family.series


@pytest.mark.req("R38")
def test_a_hundred_thousand_random_label_values_stay_below_the_ceiling() -> None:
    rng = random.Random(38)
    known = [f"m{at}" for at in range(600)]
    metrics = Metrics(known)

    def word() -> str:
        return f"{rng.getrandbits(40):x}"

    many = 100_000
    for at in range(many):
        metrics.observe(
            msgspec.structs.replace(
                STREAM,
                model=known[at % 600] if at % 2 else word(),
                tenant=word(),
                pool=word(),
                backend=word(),
                endpoint=word() if at % 3 else "/v1/chat/completions",
                outcome=word() if at % 5 == 0 else "ok",
                status=rng.randrange(1000),
            )
        )
    seen = metrics.snapshot()
    for family in FAMILIES:
        assert series(seen, family) <= MAX_SERIES, family.name
    assert sum(counts[0] for _, counts in seen.families[REQUESTS.name]) == many, "nothing is lost"
    twice = merge([seen, seen])
    for family in FAMILIES:
        assert series(twice, family) <= MAX_SERIES, family.name
    assert sum(counts[0] for _, counts in twice.families[REQUESTS.name]) == 2 * many


def test_goodput_is_of_requests_whose_promises_were_all_kept() -> None:
    metrics = Metrics(["llama"])
    for promises in ((), (("ttft", True), ("tpot", True)), (("ttft", True), ("tpot", False)), (("ttft", True),)):
        metrics.observe(msgspec.structs.replace(STREAM, promises=promises))
    seen = metrics.snapshot()
    assert cell(seen, GOODPUT_REQUESTS, "llama", "acme") == [2, 1]
    assert cell(seen, GOODPUT_TOKENS, "llama", "acme") == [40, 20]


def test_answers_and_tokens_are_counted_by_model_and_backend() -> None:
    metrics = Metrics(["llama"])
    others = (
        msgspec.structs.replace(PLAIN, outcome="engine_busy", closing="release"),
        msgspec.structs.replace(PLAIN, endpoint="/v1/embeddings", closing="estimate"),
        msgspec.structs.replace(PLAIN, backend="", closing="hit"),
    )
    for record in (PLAIN, msgspec.structs.replace(PLAIN, declined=True), *others):
        metrics.observe(record)
    seen = metrics.snapshot()
    assert cell(seen, ANSWERS, "llama", "llama-h100") == [1, 1], "generated, whole, and no hit of the cache"
    lengths = cell(seen, ANSWER_TOKENS, "llama", "llama-h100")
    assert lengths[bisect_left(ANSWER_BOUNDS_TOKENS, 20)] == 2 and lengths[-1] == 40
    assert cell(seen, BACKEND_TOKENS, "llama-h100", "b1") == [200, 128, 40], "of engines' own counts alone"


def test_predictions_lags_and_samples() -> None:
    metrics = Metrics(["llama"])
    for predicted_s, actual_s in ((0.2, 0.3), (0.0, 1.0)):
        metrics.count_first_token("p", "b", predicted_s, actual_s)
    metrics.count_lag(3, 0.004)
    for language in ("fr", "fr", ""):
        metrics.count_language("llama", language)
    metrics.count_surprisal("made up", "p", 0.25)
    metrics.count_not_judged()
    seen = metrics.snapshot()
    ratio = cell(seen, TTFT_RATIO, "p", "b")
    assert ratio[bisect_left(RATIO_BOUNDS, 1.5)] == 1 and sum(ratio[:-1]) == 1 and ratio[-1] == pytest.approx(1.5)
    assert cell(seen, LOOP_LAG, "3")[bisect_left(LAG_BOUNDS_S, 0.004)] == 1
    assert dict(seen.families[ANSWER_LANGUAGES.name]) == {("llama", "fr"): [2], ("llama", NONE): [1]}
    assert cell(seen, ANSWER_SURPRISAL, OTHER, "p")[-1] == 0.25
    assert cell(seen, ANSWERS_NOT_JUDGED) == [1]


def test_a_flood_of_the_last_label_leaves_room_for_the_first() -> None:
    cells = Cells(TOKENS)
    for at in range(10_000):
        cells.cell(("m0", f"tenant-{at}"))[0] += 1
    for at in range(50):
        cells.cell((f"model-{at}", "late"))[0] += 1
    models = {labels[0] for labels, _ in cells.rows()}
    assert models == {"m0", *(f"model-{at}" for at in range(50))}


names = st.sampled_from(["", "a", "b", "c"])
records = st.builds(
    lambda model, tenant, outcome, duration: msgspec.structs.replace(
        PLAIN, model=model, tenant=tenant, outcome=outcome, duration_s=duration
    ),
    names,
    names,
    st.sampled_from(["ok", "internal", "nonsense"]),
    st.integers(0, 2**12).map(lambda n: n / 8),  # exact in binary, so that sums do not depend on order
)


@given(st.lists(st.tuples(records, st.booleans())))
def test_merging_workers_gives_what_one_worker_would_have_counted(work: list[tuple[Record, bool]]) -> None:
    one, left, right = (Metrics(["a", "b"]) for _ in range(3))
    for record, side in work:
        one.observe(record)
        (left if side else right).observe(record)
    merged = merge([left.snapshot(3), right.snapshot(4)])
    assert merged.access_log_dropped == 7
    for family in FAMILIES:
        expected = dict(one.snapshot().families[family.name])
        found = dict(merged.families[family.name])
        assert found.keys() == expected.keys()
        for labels, numbers in expected.items():
            assert found[labels] == pytest.approx(numbers)


def test_rows_of_another_version_are_left_out() -> None:
    foreign = MetricsSnapshot(
        {"tidegate_gone_total": [(("x",), [1])], REQUESTS.name: [(("one label",), [1]), (("a", "b", "c", "d"), [1, 2])]}
    )
    assert all(rows == [] for rows in merge([foreign]).families.values())


def test_adapters_are_counted_by_their_engine_side_names() -> None:
    metrics = Metrics(["llama"])
    lora = msgspec.structs.replace(PLAIN, lora="bot@1")
    for record in (PLAIN, lora, lora, msgspec.structs.replace(lora, outcome="lora_unavailable", status=503)):
        metrics.observe(record)
    for act, why in (("load", ""), ("load", "404"), ("unload", "")):
        metrics.observe_load(LoadDone("b1", "bot@1", act, why, 0.1))
    families = metrics.snapshot().families
    assert families[LORA_REQUESTS.name] == [(("bot@1", "llama-h100"), [2, 1])]
    assert families[LORA_CALLS.name] == [(("b1", "bot@1"), [1, 1, 1, 0])]


def test_shared_requests_are_counted_by_whoever_computed_their_prompts() -> None:
    metrics = Metrics()
    by_p = msgspec.structs.replace(PLAIN, prefill="p")
    for record in (PLAIN, by_p, by_p, msgspec.structs.replace(by_p, outcome="engine_error", status=502)):
        metrics.observe(record)
    assert metrics.snapshot().families[SHARED_REQUESTS.name] == [(("llama-h100", "p"), [2, 1])]


def test_tokens_are_counted_by_issuer_and_outcome() -> None:
    metrics = Metrics()
    for outcome in (JwtOutcome.CACHED, JwtOutcome.CACHED, JwtOutcome.SIGNATURE):
        metrics.count_token("https://a", outcome)
    metrics.count_token("", JwtOutcome.MALFORMED)
    rows = dict(metrics.snapshot().families[TOKEN_CHECKS.name])
    assert dict(zip(TOKEN_OUTCOMES, rows["https://a",], strict=True)) == dict.fromkeys(TOKEN_OUTCOMES, 0) | {"cached": 2, "signature": 1}
    assert sum(rows[NONE,]) == 1
    assert {outcome.value for outcome in JwtOutcome} == set(TOKEN_OUTCOMES)


def test_a_decision_is_counted_once_with_what_decided_and_its_time() -> None:
    metrics = Metrics()
    up = Backend("a", "p", Availability.UP, "")
    for why in ("", "session", "match", "fewest requests", "rendezvous", "dice", "explored", ALONE, HAS_ROOM, DESTINATION):
        metrics.observe_decision(Route("lmetric", ((up, ()),), (), costs=(0.0,), why=why), 30e-6)
    metrics.observe_decision(Route("lmetric", (), ()), 5.0)
    families = metrics.snapshot().families
    assert families[DECISIONS.name] == [(("lmetric",), [1] * len(DECIDED))]
    ((labels, times),) = families[DECISION_TIME.name]
    assert (labels, sum(times[:-1]), times[-2]) == (("lmetric",), 11, 1)


def test_what_the_index_said_stands_beside_what_the_engine_said() -> None:
    metrics = Metrics()
    metrics.count_prefix("chat", "a", 640.0, 512)
    metrics.count_prefix("chat", "a", 64.0, 0)
    assert metrics.snapshot().families[PREFIX_TOKENS.name] == [(("chat", "a"), [704.0, 512])]


def test_what_a_store_of_answers_lost_is_added_up_over_workers() -> None:
    workers = [Metrics(), Metrics()]
    for worker in workers:
        worker.set_answers(StoreFigures(kind="shared", evicted=1, away=1, lost=3, refused=4))
        worker.set_answers(StoreFigures(kind="shared", evicted=1, away=2, lost=3, refused=4))
    total = merge([worker.snapshot(0) for worker in workers])
    assert list(total.families[CACHE_LOST.name]) == [((), [2, 4, 6, 8])]
    assert CACHE_LOST.split == ("evicted", "away", "lost", "refused")


MAIL = GuardCount("people", "email", "redact", "input", 2)
SAID = GuardRecord("changed", "", "", False, (MAIL, GuardCount("people", "card", "redact", "input", 1)), ("model",), (), "0123456789abcdef")


def guarded(**fields: object) -> Record:
    return msgspec.structs.replace(PLAIN, guards=msgspec.structs.replace(SAID, **fields))


def test_what_guard_rules_said_is_counted_by_tenant_and_rule() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(PLAIN)
    assert metrics.snapshot().families[GUARD_VERDICTS.name] == [], "no rule looks at it"
    metrics.observe(guarded())
    metrics.observe(guarded(word="block", by="keys", direction="input", counts=(), failed=()))
    seen = metrics.snapshot()
    assert dict(zip(GUARD_WORDS, cell(seen, GUARD_VERDICTS, "acme"), strict=True)) == dict.fromkeys(GUARD_WORDS, 0) | {
        "changed": 1,
        "block": 1,
    }
    assert cell(seen, GUARD_FINDINGS, "acme", "people", "redact", "input") == [3], "kinds of one rule are one series"
    assert cell(seen, GUARD_FAILURES, "acme", "model") == [1]


def test_what_the_rules_of_a_model_said_that_another_one_answered_for_is_counted_too() -> None:
    metrics = Metrics(["llama"])
    refused = msgspec.structs.replace(SAID, word="block", by="people")
    steps = (Fell("big", "mid", "error", "engine_error"), Fell("mid", "llama", "content_filter", "guard_blocked", refused))
    metrics.observe(msgspec.structs.replace(guarded(word="passed", counts=(), failed=()), fell_back=steps))
    seen = metrics.snapshot()
    assert dict(zip(GUARD_WORDS, cell(seen, GUARD_VERDICTS, "acme"), strict=True)) == dict.fromkeys(GUARD_WORDS, 0) | {
        "passed": 1,
        "block": 1,
    }
    assert cell(seen, GUARD_FINDINGS, "acme", "people", "redact", "input") == [3]


def test_findings_that_come_after_the_end_of_an_answer_are_counted_too() -> None:
    metrics = Metrics(["llama"])
    metrics.observe(guarded())
    late = GuardVerdict(findings=(Noted(0, 3, "tone", "rude", "flag"), Noted(4, 5, "people", "email", "redact")), text=None)
    metrics.count_late_findings("acme", "output", late)
    seen = metrics.snapshot()
    assert cell(seen, GUARD_FINDINGS, "acme", "tone", "flag", "output") == [1]
    assert sum(cell(seen, GUARD_VERDICTS, "acme")) == 1, "a verdict was counted with its request"


@pytest.mark.req("R38")
def test_rules_without_end_make_no_series_without_end() -> None:
    metrics = Metrics(["llama"])
    many = 20_000
    for at in range(many):
        found = GuardCount(f"rule-{at}", "word", "flag" if at % 2 else f"mode-{at}", "input" if at % 3 else f"direction-{at}", 1)
        said = msgspec.structs.replace(SAID, counts=(found,), failed=(f"rule-{at}",))
        metrics.observe(msgspec.structs.replace(PLAIN, tenant=f"tenant-{at % 700}", guards=said))
    seen = metrics.snapshot()
    for family in (GUARD_VERDICTS, GUARD_FINDINGS, GUARD_FAILURES):
        assert series(seen, family) <= MAX_SERIES, family.name
        assert sum(sum(counts) for _, counts in seen.families[family.name]) == many, "nothing is lost"
    rows = [labels for labels, _ in seen.families[GUARD_FINDINGS.name]]
    assert len({rule for _, rule, _, _ in rows}) <= MAX_NAMES + 1
    assert {mode for _, _, mode, _ in rows} <= {"flag", OTHER} and {direction for *_, direction in rows} <= {"input", OTHER}


def test_what_detectors_count_for_themselves_is_shown() -> None:
    metrics = Metrics()
    metrics.set_detector("shield", dict.fromkeys(DETECTOR_RESULTS, 0) | {"answered": 7, "timeouts": 2}, 1.5)
    metrics.set_detector("shield", dict.fromkeys(DETECTOR_RESULTS, 0) | {"answered": 9, "timeouts": 2}, 2.0)
    seen = metrics.snapshot()
    assert cell(seen, DETECTOR_QUESTIONS, "shield") == [9, 0, 0, 2, 0, 0, 0, 0]
    assert cell(seen, DETECTOR_SECONDS, "shield") == [2.0]
