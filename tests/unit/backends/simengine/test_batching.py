import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.simengine.batching import Batcher, SimSequence
from backends.simengine.settings import PRESETS, Timing

H100 = PRESETS["h100-8b"]
requests = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=20)


def play(batcher: Batcher, limit: int = 100_000) -> tuple[float, dict[int, tuple[float, float]]]:
    """Run until nothing is left; returns the time in ms, and per sequence when its first and last token came."""
    now, seen = 0.0, dict[int, tuple[float, float]]()
    for _ in range(limit):
        step = batcher.begin()
        if step is None:
            return now, seen
        now += step.duration_ms
        for sequence in batcher.end(step):
            seen[id(sequence)] = (seen.get(id(sequence), (now, now))[0], now)
    raise AssertionError("never ended")


@settings(max_examples=60, deadline=None)
@given(requests)
def test_every_request_finishes_with_exactly_its_tokens_and_frees_everything(asked: list[tuple[int, int, int]]) -> None:
    small = Timing(6.5, 0.025, 8e-7, 0.02, 5e-5, kv_tokens=1024)
    batcher = Batcher(small, block_size=16, max_num_seqs=4, token_budget=128)
    sequences = [batcher.sequence([salt] * prompt, output, "m", str(salt)) for prompt, output, salt in asked]
    for sequence in sequences:
        batcher.add(sequence)
    play(batcher)
    assert [s.produced for s in sequences] == [output for _, output, _ in asked]
    assert batcher.kv.used == 0
    assert batcher.counters.finished == len(asked)
    assert all(s.cached_tokens % 16 == 0 and s.cached_tokens < len(s.prompt) for s in sequences)


def test_one_request_alone_takes_what_the_formula_says() -> None:
    batcher = Batcher(H100)
    sequence = batcher.sequence(list(range(1000)), 3, "m")
    batcher.add(sequence)
    total, seen = play(batcher)
    first = 6.5 + 0.025 * 1000
    assert seen[id(sequence)][0] == pytest.approx(first)
    assert total == pytest.approx(first + sum(6.5 + 0.02 + 5e-5 * context for context in (1001, 1002)))


def test_long_prompts_are_prefilled_in_chunks_beside_decoding() -> None:
    batcher = Batcher(H100, token_budget=512)
    chat, document = batcher.sequence([1] * 20, 50, "m"), batcher.sequence(list(range(5000)), 1, "m")
    batcher.add(chat)
    batcher.end(batcher.begin() or pytest.fail("idle"))
    batcher.add(document)
    steps = 0
    while document.produced == 0:
        step = batcher.begin() or pytest.fail("idle")
        assert sum(chunk for _, chunk in step.prefill) + len(step.decoding) <= 512
        assert chat in step.decoding
        batcher.end(step)
        steps += 1
    assert steps == -(-5000 // 511)


def test_a_second_request_skips_what_the_first_has_computed() -> None:
    batcher = Batcher(H100)
    prompt = list(range(1600))
    for cached in (0, 1584):  # all full blocks but the last token's
        sequence = batcher.sequence(prompt, 1, "m")
        batcher.add(sequence)
        play(batcher)
        assert sequence.cached_tokens == cached
    assert batcher.counters.prefix_hits == 1584


def test_preemption_computes_again_and_loses_nothing() -> None:
    tight = Timing(6.5, 0.025, 8e-7, 0.02, 5e-5, kv_tokens=96)
    batcher = Batcher(tight, block_size=16, max_num_seqs=4)
    sequences = [batcher.sequence([n] * 17, 40, "m", str(n)) for n in range(3)]
    for sequence in sequences:
        batcher.add(sequence)
    play(batcher)
    assert batcher.counters.preemptions > 0
    assert [s.produced for s in sequences] == [40, 40, 40]


def test_an_abort_frees_at_once_wherever_the_request_is() -> None:
    batcher = Batcher(H100, max_num_seqs=1)
    running, waiting = batcher.sequence([1] * 64, 10, "m"), batcher.sequence([2] * 64, 10, "m")
    for sequence in (running, waiting):
        batcher.add(sequence)
    step = batcher.begin() or pytest.fail("idle")
    batcher.abort(running)
    batcher.abort(waiting)
    batcher.abort(waiting)
    assert batcher.kv.used == 0
    assert batcher.end(step) == []
    assert (batcher.begin(), batcher.counters.aborted) == (None, 2)


def test_a_request_that_could_never_run_is_told_apart() -> None:
    batcher = Batcher(Timing(1, 1, 0, 0, 0, kv_tokens=64), block_size=16)
    assert batcher.fits(SimSequence([1] * 40, 24, []))
    assert not batcher.fits(SimSequence([1] * 40, 25, []))
