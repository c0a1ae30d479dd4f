import pytest

from domain.usage import Usage
from gateway.placement.in_flight import InFlight, learn
from tests.placed import Worker, chat

TEXT = "word " * 4_000


async def answered(worker: Worker, prompt_tokens: int, cached: int | None, completion: int = 100, reported: bool = True) -> None:
    """One whole answer, of an engine that has the prompt computed in .2 s and ends after 1 s."""
    ask = chat(TEXT)
    placement = await worker.placed(ask)
    in_flight = InFlight(placement, placement.route.backends[0].id, worker.deps, stream=True)
    in_flight.begun()
    story = worker.story(usage=Usage(prompt_tokens, completion) if reported else None, cached=cached)
    learn(ask, placement, in_flight, story, worker.deps)
    in_flight.over()


async def test_what_text_makes_is_learned_from_engines_that_tell() -> None:
    worker = Worker("a", "b")
    before = (await worker.placed(chat(TEXT))).request.prompt_tokens
    for _ in range(3):
        await answered(worker, 10_000, None)
    told = (await worker.placed(chat(TEXT))).request.prompt_tokens
    assert abs(told - 10_000) < abs(before - 10_000)
    for _ in range(3):
        await answered(worker, 1, None, reported=False)
    assert (await worker.placed(chat(TEXT))).request.prompt_tokens == told


@pytest.mark.req("ROUTERS-12")
async def test_an_index_that_is_wrong_is_believed_less_and_silence_says_nothing() -> None:
    worker = Worker("a")
    worker = Worker("a", "b")
    for _ in range(40):
        await answered(worker, 5_000, None)
    assert (worker.compared, min(worker.load_table.trust)) == ([], 1.0)
    for _ in range(40):
        await answered(worker, 5_000, 0)
    assert min(worker.load_table.trust) < 0.5
    assert worker.compared[-1][0] > 4_000


async def test_lengths_of_answers_are_learned_each_sequence_alone() -> None:
    worker = Worker("a", "b")
    for _ in range(40):
        await answered(worker, 5_000, None, completion=900)
    expected = (await worker.placed(chat(TEXT))).request
    assert expected.output_tokens == pytest.approx(900, rel=0.1)
    assert (await worker.placed(chat(TEXT, n=3))).request.output_tokens == pytest.approx(2_700, rel=0.1)


async def test_speed_is_learned_from_streams() -> None:
    worker = Worker("a", "b")
    slow = {one: worker.load_table.prefill_s_token[at] for one, at in worker.load_table.row_of.items()}
    for _ in range(20):
        await answered(worker, 5_000, 0)
        worker.now += 5
    assert any(worker.load_table.prefill_s_token[at] != slow[one] for one, at in worker.load_table.row_of.items())
    assert all(rate > 0 for rate in (*worker.load_table.prefill_s_token, *worker.load_table.step_s))


async def test_a_prediction_is_of_the_time_when_the_request_was_sent_and_gets_better() -> None:
    worker = Worker("a", "b")
    for at in range(60):
        await answered(worker, 5_000 + 100 * (at % 7), 0)
        worker.now += 5
    ratios = [actual_s / predicted_s for predicted_s, actual_s in worker.first_tokens]
    assert len(ratios) == 60
    assert [actual_s for _, actual_s in worker.first_tokens] == [pytest.approx(0.2)] * 60
    assert all(0.5 < ratio < 2.0 for ratio in ratios[-10:]) and abs(ratios[-1] - 1) < abs(ratios[0] - 1)


async def test_alone_there_is_nothing_to_learn_for() -> None:
    worker = Worker("a")
    before = worker.load_table.prefill_s_token[0]
    for _ in range(20):
        await answered(worker, 5_000, 0, completion=900)
    assert (worker.load_table.prefill_s_token[0], worker.compared, len(worker.deps.lengths)) == (before, [], 0)
