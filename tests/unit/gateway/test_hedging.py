from dataclasses import replace

from backends.hedge import Hedge
from gateway.hedging import race_of
from gateway.http.edge.exchange import Exchange
from gateway.story import Story
from tests.placed import Worker, chat

NOBODY: Exchange = None  # type: ignore[assignment]  # nothing is written before the race is run


async def test_only_short_streams_that_nobody_holds_are_sent_twice_and_only_where_the_pool_says_so() -> None:
    worker = Worker("a", "b")
    deps = replace(worker.deps, hedges={"chat": Hedge(512)})
    story = Story("req-1", 0.0, 0.0, 0.0)
    short = await worker.placed(chat("hello"))
    assert race_of(chat("hello"), short, NOBODY, story, deps) is not None
    assert race_of(chat("hello"), short, NOBODY, story, worker.deps) is None
    assert race_of(chat("hello", stream=False), short, NOBODY, story, deps) is None
    long = await worker.placed(chat("x" * 20_000))
    assert race_of(chat("x" * 20_000), long, NOBODY, story, deps) is None
    alone = Worker("a")
    assert race_of(chat("hello"), await alone.placed(chat("hello")), NOBODY, story, deps) is None
