import pytest

from domain.membership import Traits
from gateway.placement.in_flight import InFlight
from gateway.placement.place import longest_context
from tests.placed import Worker, chat


async def test_placing_changes_nothing() -> None:
    worker = Worker("a", "b")
    placement = await worker.placed(chat(), session="talk")
    assert sorted(one.id for one in placement.route.backends) == ["a", "b"]
    pool_states = worker.deps.pool_states
    assert (pool_states.total(), len(worker.deps.decisions), pool_states["chat"].sessions.holder(placement.request.session)) == (
        0, 0, "",
    )  # fmt: skip
    assert worker.held(placement, "a") == worker.held(placement, "b") == 0


async def test_where_nobody_else_is_up_no_prompt_is_read() -> None:
    placement = await Worker("a").placed(chat())
    assert (placement.prompt, len(placement.request.chain), placement.route.why) == (None, 0, "alone")


async def test_one_token_is_always_computed() -> None:
    worker = Worker("a", "b")
    first = await worker.placed(chat("x" * 2_560))
    in_flight = InFlight(first, "a", worker.deps, stream=True)
    again = await worker.placed(chat("x" * 2_560))
    assert 0 < again.held_tokens("a") <= again.request.prompt_tokens - 1
    assert again.held_tokens("b") == 0
    in_flight.over()


@pytest.mark.req("ROUTERS-25")
async def test_a_cap_of_requests_acts() -> None:
    worker = Worker("a", "b", traits={"a": Traits(max_in_flight=2)})
    ask = chat()
    stakes = [InFlight(await worker.placed(ask), "a", worker.deps, stream=True) for _ in range(2)]
    full = await worker.placed(ask)
    assert [one.id for one in full.route.backends] == ["b"]
    assert "its cap" in full.route.excluded[0].reason
    stakes[0].over()
    assert len((await worker.placed(ask)).route.backends) == 2


@pytest.mark.req("ROUTERS-25")
async def test_a_context_acts_and_an_estimate_refuses_nobody_who_may_fit() -> None:
    worker = Worker("a", "b", traits={"a": Traits(context_tokens=1_000), "b": Traits(context_tokens=4_000)})
    ids = {text: [one.id for one in (await worker.placed(chat(text))).route.backends] for text in ("x" * 400, "x" * 8_000, "x" * 20_000)}
    assert [sorted(found) for found in ids.values()] == [["a", "b"], ["b"], ["b"]]
    far_too_long = await worker.placed(chat("x" * 80_000))
    assert (far_too_long.route.backends, longest_context(far_too_long)) == ([], 4_000)
    assert longest_context(await worker.placed(chat("x" * 20_000))) == 0
    worker.deps.pool_states.configure("b", Traits())
    assert [one.id for one in (await worker.placed(chat("x" * 80_000))).route.backends] == ["b"]
