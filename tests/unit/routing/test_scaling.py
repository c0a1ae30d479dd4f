"""How many backends a load needs, and what is recommended over time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from domain.membership import Role
from routing.scaling import PREFILL, PoolLoad, ScaleHistory, ScaleSettings, missed_by, needed

EASY = PoolLoad(backends=4, up=4, telling=4, running=8, slots=32.0, tokens_per_s=40_000.0, kv_used=0.4, kv_telling=4)
BARE = ScaleSettings(headroom=0.0, kv=0.8, ttft_s=2.0, scale_in_after_s=300.0)


def changed(load: PoolLoad, **fields: object) -> PoolLoad:
    return msgspec.structs.replace(load, **fields)


def test_of_the_needs_the_largest_counts() -> None:
    assert needed(EASY, BARE).backends == pytest.approx(4 * 0.1 / 0.8)
    crowded = needed(changed(EASY, running=96, queued=64), BARE)
    assert crowded.backends == pytest.approx(160 / 32) and "an engine bears 32" in crowded.why
    full = needed(changed(EASY, kv_used=3.2, waiting=8, slots=0.0), BARE)
    assert full.backends == pytest.approx(4 * 0.8 * 2 / 0.8) and full.busy == pytest.approx(2.0)
    late = needed(changed(EASY, waiting=8, waiting_tokens=120_000), BARE)
    assert late.backends == pytest.approx(4 * 3.0 / 2.0) and "30000 tokens wait for each engine" in late.why
    assert needed(changed(EASY, waiting=8, waiting_tokens=12_000_000), BARE).backends == 8
    assert needed(changed(EASY, deficit=0.2), BARE).backends == 5 and needed(changed(EASY, deficit=0.04), BARE).backends < 1


def test_headroom_is_added_to_what_the_load_fills() -> None:
    roomy = ScaleSettings(headroom=0.5)
    assert needed(EASY, roomy).backends == pytest.approx(2 * needed(EASY, BARE).backends)


def test_engines_that_tell_nothing_are_taken_to_be_like_the_others() -> None:
    half = changed(EASY, telling=2, running=4, kv_used=0.2, kv_telling=2)
    assert needed(half, BARE).backends == needed(EASY, BARE).backends


def test_without_knowledge_the_number_stays() -> None:
    for blind in (changed(EASY, up=0, telling=0), changed(EASY, telling=0)):
        history = ScaleHistory(BARE)
        assert [history.note(blind, at).wanted for at in (0.0, 299.0, 350.0, 500.0)] == [4, 4, 4, 4]
    empty = ScaleHistory(ScaleSettings(min=2)).note(PoolLoad(backends=0, queued=3), 0.0)
    assert empty.wanted == 2 and "waiting for one: 3 requests" in empty.why


def test_fewer_are_recommended_only_when_fewer_have_sufficed_for_the_whole_time() -> None:
    history = ScaleHistory(BARE)
    assert history.note(changed(EASY, running=180), 0.0).wanted == 6
    assert history.note(EASY, 30.0).wanted == 6
    assert history.note(EASY, 300.0).wanted == 6
    assert history.note(changed(EASY, running=96), 310.0).wanted == 3
    waits = history.note(EASY, 330.0)
    assert (waits.wanted, waits.settles_s) == (3, 280.0) and "1 would do" in waits.why
    assert history.note(EASY, 611.0).wanted == 1
    # a wave is answered at once
    assert history.note(changed(EASY, running=180), 612.0).wanted == 6


def test_a_start_has_not_seen_the_time_before_it() -> None:
    history = ScaleHistory(BARE)
    assert history.note(EASY, 1000.0).wanted == 4
    assert history.note(EASY, 1299.0).wanted == 4
    assert history.note(EASY, 1301.0).wanted == 1
    # nor has one that nobody asked for longer than that
    assert history.note(EASY, 2000.0).wanted == 4


def test_bounds_hold_and_are_told() -> None:
    told = ScaleHistory(ScaleSettings(min=1, max=5, headroom=0.0)).note(changed(EASY, running=320), 0.0)
    assert told.wanted == 5 and "10 would be needed, the pool's bounds allow 5" in told.why
    with pytest.raises(ValidationError, match="min is 7 and max 3"):
        ScaleSettings(min=7, max=3)


@given(st.lists(st.tuples(st.integers(0, 400), st.floats(0.1, 100.0)), min_size=1, max_size=40))
def test_the_recommendation_never_falls_below_the_most_that_was_needed_lately(steps: list[tuple[int, float]]) -> None:
    scale = ScaleSettings(min=1, max=9, headroom=0.1, scale_in_after_s=120.0)
    history, now, needs = ScaleHistory(scale), 0.0, []
    for running, after_s in steps:
        now += after_s
        load = changed(EASY, running=running)
        wanted = history.note(load, now).wanted
        needs.append((now, min(max(needed(load, scale).backends, 1), 9)))
        assert 1 <= wanted <= 9
        assert wanted >= max(need for at, need in needs if at >= now - 120.0) - 1e-6


ASLEEP = ScaleSettings.model_validate({"min": 0, "max": 4, "to_zero": {}})


def test_a_request_for_a_sleeping_pool_needs_one_backend_and_quiet_needs_none() -> None:
    assert needed(PoolLoad(backends=0), ASLEEP).backends == 0
    assert needed(PoolLoad(backends=0, held=1), ASLEEP).backends == 1
    assert "waking" in needed(PoolLoad(backends=1, held=3), ASLEEP).why, "its engine is listed and still starts"
    quiet = PoolLoad(backends=1, up=1, telling=1, kv_telling=1)
    assert needed(quiet, ASLEEP).backends == 0
    assert 0 < needed(msgspec.structs.replace(quiet, answered=3), ASLEEP).backends <= 1
    assert needed(quiet, ScaleSettings()).backends >= 0
    history = ScaleHistory(ASLEEP)
    assert history.note(quiet, 0.0).wanted == 1
    assert history.note(msgspec.structs.replace(quiet, answered=1), 200.0).wanted == 1
    assert history.note(quiet, 400.0).wanted == 1, "something was answered within the time that scale-in waits"
    assert history.note(quiet, 501.0).wanted == 0


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"min": 0}, "to_zero"),
        ({"to_zero": {}}, "min: 0"),
        ({"min": 0, "to_zero": {"wait_s": 0}}, "greater than 0"),
    ],
)
def test_a_pool_that_may_sleep_says_so_with_both_fields(written: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ScaleSettings.model_validate(written)


def test_engines_that_compute_prompts_much_of_the_time_are_too_few() -> None:
    busy = changed(EASY, prefilled=0.6)
    assert needed(busy, changed_bounds(prefill=0.3)).backends == pytest.approx(4 * 0.6 / 0.3)
    assert "prompts take 60% of the engines' time" in needed(busy, changed_bounds(prefill=0.3)).why
    assert needed(changed(EASY, prefilled=0.0), BARE) == needed(EASY, BARE)


def changed_bounds(**fields: float) -> ScaleSettings:
    return BARE.model_copy(update=fields)


def test_engines_that_only_generate_need_nothing_for_prompts() -> None:
    late = changed(EASY, waiting=8, waiting_tokens=12_000_000, prefilled=0.9, ttft_p95_s=30.0)
    assert needed(late, BARE).backends > 8
    decoding = changed(late, role="decode")
    assert decoding.predicted_s is None and decoding.queue_tokens == 0
    assert needed(decoding, BARE) == needed(changed(decoding, waiting_tokens=None, prefilled=None, ttft_p95_s=None), BARE)
    assert needed(changed(decoding, kv_used=3.6), BARE).backends > 4, "their memory and their slots count"


def test_engines_that_only_compute_prompts_may_do_so_for_more_of_their_time() -> None:
    busy = changed(EASY, prefilled=0.6)
    halves = needed(changed(busy, role="prefill"), BARE)
    assert halves.backends == pytest.approx(4 * 0.6 / PREFILL["prefill"]) and needed(busy, BARE).backends == pytest.approx(8.0)
    assert needed(changed(busy, role="prefill"), changed_bounds(prefill=0.5)).backends == pytest.approx(4 * 0.6 / 0.5)


def test_missed_promises_are_laid_to_the_role_that_lacks_most() -> None:
    full, easy = changed(EASY, role="prefill", running=120), changed(EASY, role="decode")
    bounds: dict[Role, ScaleSettings] = {"prefill": BARE, "decode": BARE}
    assert missed_by({"prefill": full, "decode": easy}, bounds) == "prefill"
    assert missed_by({"prefill": full, "decode": easy}, {"decode": BARE}) == "decode", "no other may grow"
    assert missed_by({"prefill": changed(full, telling=0), "decode": easy}, bounds) == "decode"
    assert missed_by({"prefill": changed(full, up=0)}, bounds) is None
