"""What processes tell each other of the requests that they send."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.load import MERGED, LoadTable, SiblingLoad
from routing.policy_instance import policy_instance
from routing.ports import Circumstances, RoutingRequest
from routing.prefix.index import PrefixIndex
from routing.schedule import place
from routing.siblings import MAX_PENDING_BYTES, MAX_PROMPT_BLOCKS, WHOLE_EVERY_S, HearSiblings, SiblingNews, TellSiblings
from tests.placement import board_of, pool_of, tell

BACKENDS = ("a", "b", "c")
STATES = st.sampled_from(["sent", "begun", "over"])


class Sessions(dict[int, str]):
    def held(self, session: int, backend_id: str) -> None:
        self[session] = backend_id


class Process:
    """One of several gateway processes before the same backends."""

    def __init__(self, number: int, generation: int = 7, *, events: bool = False) -> None:
        self.load_table = board_of(*BACKENDS)
        self.index = PrefixIndex(100_000)
        for backend in BACKENDS:
            self.index.size(backend, 10_000, exact=events)
        self.sessions = Sessions()
        self.tell = TellSiblings(generation, number)
        self.hear = HearSiblings(generation, number, self.table_of, self.index, lambda _: self.sessions)

    def table_of(self, backend: str) -> LoadTable | None:
        return self.load_table if backend in self.load_table.row_of else None

    def news(self, now: float) -> SiblingNews | None:
        """Its batch, as it comes out of the wire."""
        batch = self.tell.batch((self.load_table,), now)
        return None if batch is None else msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=SiblingNews)


def exchange(processes: list[Process], now: float) -> None:
    for batch in [process.news(now) for process in processes]:
        if batch is not None:
            for process in processes:
                process.hear.hear(batch, now)


def columns(load_table: LoadTable) -> dict[str, list[float]]:
    load_table.settle()
    return {name: list(getattr(load_table, name)) for name in MERGED}


@pytest.mark.req("ROUTERS-17")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 9000), st.sampled_from(["sent", "begun", "over"])), max_size=30)
)
def test_after_an_exchange_every_process_sees_what_one_process_would(steps: list[tuple[int, int, int, str]]) -> None:
    """The engines have reported nothing since: everything that is known of them was told."""
    processes, one = [Process(number) for number in range(3)], Process(9)
    charges = []
    for at, (process, backend, tokens, until) in enumerate(steps):
        now = 1.0 + at
        for table in (processes[process].load_table, one.load_table):
            charge = table.charge(BACKENDS[backend], tokens, tokens + 100, now)
            if until != "sent":
                table.begun(charge)
            charges.append((table, charge, until))
    for table, charge, until in charges:
        if until == "over":
            table.release(charge)
    exchange(processes, 100.0)
    # how long prompts usually are is a mean of each process's own, and is not needed where nobody else's requests wait
    expected = columns(one.load_table)
    assert [columns(process.load_table) for process in processes] == [expected] * 3


def test_what_is_told_is_not_added_to_a_report_that_has_it() -> None:
    first, second = processes = [Process(1), Process(2)]
    first.load_table.charge("a", 500, 600, 1.0)
    tell(second.load_table, "a", 2.0, running=1.0, queued_tokens=500.0)
    exchange(processes, 2.1)
    assert (second.load_table.requests[0], second.load_table.queue_tokens[0]) == (1.0, 500.0)
    second.load_table.charge("a", 100, 200, 2.2)
    assert (second.load_table.requests[0], second.load_table.queue_tokens[0]) == (2.0, 600.0)


def test_own_limits_count_own_requests_and_the_hold_counts_all() -> None:
    first, second = processes = [Process(1), Process(2)]
    first.load_table.charge("a", 8000, 9000, 1.0)
    exchange(processes, 1.1)
    table = second.load_table
    assert (table.in_flight("a"), table.unbegun("a"), table.total()) == (0, 0, 0)
    assert table.waits_there(0) == 8000


def test_a_sibling_that_left_has_nothing_in_flight() -> None:
    first, second = processes = [Process(1), Process(2)]
    first.load_table.charge("a", 500, 600, 1.0)
    exchange(processes, 1.1)
    assert second.load_table.requests[0] == 1
    freed: list[bool] = []
    second.load_table.freed = lambda: freed.append(True)
    second.hear.left(1)
    assert (second.load_table.requests[0], second.load_table.queue_tokens[0], freed) == (0, 0, [True])


def test_a_lost_batch_is_made_good_within_a_second() -> None:
    first, second = processes = [Process(1), Process(2)]
    one, other = first.load_table.charge("a", 500, 600, 1.0), first.load_table.charge("b", 50, 60, 1.0)
    exchange(processes, 1.1)
    first.load_table.release(one)
    assert first.news(1.2) is not None  # and it is lost
    assert second.load_table.requests[0] == 1
    assert first.news(1.3) is None
    exchange(processes, 1.1 + WHOLE_EVERY_S)
    assert second.load_table.requests[:2] == [0, 1]
    first.load_table.release(other)
    exchange(processes, 2.2)
    assert second.load_table.requests[1] == 0
    assert first.news(9.0) is None, "nothing in flight, so nothing to tell"


def test_a_sibling_that_joins_is_told_of_what_is_in_flight() -> None:
    first, late = Process(1), Process(2)
    first.load_table.charge("a", 500, 600, 1.0)
    first.news(1.1)
    first.tell.joined()
    batch = first.news(1.2)
    assert batch is not None
    late.hear.hear(batch, 1.2)
    assert late.load_table.requests[0] == 1


@pytest.mark.req("ROUTERS-17")
def test_the_next_request_with_a_prefix_goes_where_a_sibling_sent_the_first() -> None:
    processes = [Process(number) for number in range(4)]
    how, chain = policy_instance("predicted_latency"), list(range(1000, 1064))
    request = RoutingRequest(4096, chain, 64, session=5)
    processes[0].load_table.release(processes[0].load_table.charge("b", 4096, 4200, 1.0))
    processes[0].tell.sent("b", request.session, chain)
    exchange(processes, 1.05)
    for at, process in enumerate(processes[1:]):
        assert process.index.match(chain, 1.06).blocks == {"b": 64}
        assert process.sessions == {5: "b"}
        route = place(
            request, pool_of(*BACKENDS), process.load_table, how, Circumstances(1.06, process.index.match(chain, 1.06)), random.Random(at)
        )
        assert route.backends[0].id == "b"


def test_engines_whose_events_tell_are_not_told_of() -> None:
    first, second = processes = [Process(1, events=True), Process(2, events=True)]
    first.tell.sent("a", 0, ())
    assert first.news(1.0) is None
    first.tell.sent("a", 0, [1, 2, 3])  # a prompt with an image, say
    exchange(processes, 1.1)
    assert second.index.match([1, 2, 3], 1.2).blocks == {}


def test_hashes_of_another_seed_or_secret_are_refused() -> None:
    first, second = Process(1), Process(2, generation=8)
    first.load_table.charge("a", 500, 600, 1.0)
    first.tell.sent("a", 3, [1, 2])
    batch = first.news(1.1)
    assert batch is not None
    second.hear.hear(batch, 1.1)
    assert (second.hear.refused, second.load_table.requests[0], second.sessions, second.index.blocks) == (1, 0, {}, 0)


def test_backends_that_are_not_known_yet_are_skipped_until_they_are() -> None:
    first, second = processes = [Process(1), Process(2)]
    first.load_table.add("new")
    first.load_table.charge("new", 500, 600, 1.0)
    first.tell.sent("new", 3, [1, 2])
    exchange(processes, 1.1)
    assert second.sessions == {}
    second.load_table.add("new")
    second.hear.joined("new")
    assert second.load_table.requests[second.load_table.row_of["new"]] == 1


def test_what_is_told_of_prompts_is_bounded() -> None:
    process = Process(1)
    for at in range(100):
        process.tell.sent("a", 0, list(range(at * 10_000, at * 10_000 + 6000)))
    batch = process.news(1.0)
    assert batch is not None
    sizes = [len(prompt.chain) for prompt in batch.prompts]
    assert max(sizes) == 8 * MAX_PROMPT_BLOCKS
    assert sum(sizes) <= MAX_PENDING_BYTES
    assert process.tell.dropped == 100 - len(sizes)
    for at in range(3):
        process.tell.sent("a", 1 + at, list(range(1000)))
    small = process.tell.batch((process.load_table,), 1.1, max_bytes=17_000)
    assert small is not None
    assert [len(prompt.chain) for prompt in small.prompts] == [8000, 8000, 0], "the conversation's backend is told still"


def test_sums_add_up() -> None:
    assert SiblingLoad(1, 2, 3, 4, 5, 6) + SiblingLoad(10, 20, 30, 40, 50, 60) == SiblingLoad(11, 22, 33, 44, 55, 66)
