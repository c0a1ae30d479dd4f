from dataclasses import replace

from backends.hedge import Hedge
from backends.ports import Call
from domain.ask import Ask
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.placement.place import Placement
from gateway.request.attempt import Attempt
from gateway.request.hedge import hedge_for
from gateway.story import Story
from tests.placed import Worker, chat

NOBODY: Exchange = None  # type: ignore[assignment]  # nothing is written before the race is run


def hedge_of(ask: Ask, placement: Placement, deps: Deps) -> Hedge | None:
    story, call = Story("req-1", 0.0, 0.0, 0.0), Call("POST", "/", b"{}", "req-1")
    return hedge_for(Attempt(ask, call, "sim", placement, NOBODY, story, deps, placement.route.backends[0]))


async def test_only_short_streams_that_nobody_holds_are_sent_twice_and_only_where_the_pool_says_so() -> None:
    worker = Worker("a", "b")
    deps = replace(worker.deps, hedges={"chat": Hedge(512)})
    short = await worker.placed(chat("hello"))
    assert hedge_of(chat("hello"), short, deps) is not None
    assert hedge_of(chat("hello"), short, worker.deps) is None
    assert hedge_of(chat("hello", stream=False), short, deps) is None
    long = await worker.placed(chat("x" * 20_000))
    assert hedge_of(chat("x" * 20_000), long, deps) is None
    alone = Worker("a")
    assert hedge_of(chat("hello"), await alone.placed(chat("hello")), deps) is None
