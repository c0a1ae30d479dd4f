"""The indexes of questions: in memory with and without a graph, and in Postgres with pgvector; the laws that hold for each."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import numpy as np
import pytest
from numpy.typing import NDArray

from cache.ports import Selection
from cache.semantic.index import MemoryQuestions
from cache.semantic.ports import Neighbour, Question, QuestionIndex
from cache.stores.pgvector import REST_S, SWEEP_EVERY_S, PostgresQuestions, QuestionsAway, QuestionsUnusable

NOW = 4_000_000_000.0
PATIENCE_S = 60.0
DIMENSIONS = 16
GRAPH_FROM = 30
"""Questions of a partition above which the index with a graph has one, in this suite."""
PART = b"p" * 32

Floats = NDArray[np.float32]


class At:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def unit(seed: int, dimensions: int = DIMENSIONS) -> Floats:
    vector = np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32)
    return vector / np.linalg.norm(vector)


def question(key: str, vector: Floats | int = 0, **rest: Any) -> Question:
    numbers = unit(vector) if isinstance(vector, int) else vector
    given: dict[str, Any] = {
        "partition": PART,
        "owner": "acme",
        "text": f"text of {key}",
        "kept_at": NOW,
        "model": "m",
        "writer": "w",
    } | rest
    return Question(key=key.encode(), vector=numbers.astype("<f4").tobytes(), expires_at=given.pop("expires_at", NOW + 60), **given)


def keys(found: list[Neighbour]) -> list[str]:
    return [one.question.key.decode() for one in found]


async def postgres_url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with request.getfixturevalue("postgres").database(migrated=False) as engine:
        yield engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async for one in postgres_url(request):
        yield one


@pytest.fixture(params=["memory", "thread", "graph", "postgres"])
async def index(request: pytest.FixtureRequest) -> AsyncIterator[QuestionIndex]:
    if request.param == "postgres":
        async for one in postgres_url(request):
            stored = PostgresQuestions(one, At(), patience_s=PATIENCE_S)
            await stored.start()
            yield stored
            await stored.close()
        return
    bounds = {"memory": {}, "thread": {"on_loop_most": 0}, "graph": {"exact_most": GRAPH_FROM}}[request.param]
    kept = MemoryQuestions(**bounds)
    yield kept
    await kept.close()


async def test_the_nearest_come_first_with_their_cosine_and_everything_that_was_kept(index: QuestionIndex) -> None:
    near, far = question("near", 1, user="u", namespace="n", text="ünï 日本"), question("far", 2)
    await index.add(far)
    await index.add(near)
    found = await index.nearest(PART, "acme", unit(1), 8, NOW)
    assert [one.question for one in found] == [near, far]
    assert [one.similarity for one in found] == pytest.approx([1.0, float(unit(1) @ unit(2))], abs=1e-6)


async def test_no_more_than_asked_for(index: QuestionIndex) -> None:
    for number in range(20):
        await index.add(question(f"{number}", number))
    vector = unit(100)
    expected = sorted(range(20), key=lambda number: -float(unit(number) @ vector))
    assert keys(await index.nearest(PART, "acme", vector, 3, NOW)) == [f"{number}" for number in expected[:3]]
    assert len(await index.nearest(PART, "acme", vector, 50, NOW)) == 20
    assert await index.nearest(PART, "acme", vector, 0, NOW) == []


async def test_a_large_partition_finds_what_it_has(index: QuestionIndex) -> None:
    """Above the bound of the graph, while it is built and when it is built."""
    for number in range(4 * GRAPH_FROM):
        await index.add(question(f"{number}", number))
        assert keys(await index.nearest(PART, "acme", unit(number), 1, NOW)) == [f"{number}"]
    for number in range(4 * GRAPH_FROM):
        assert keys(await index.nearest(PART, "acme", unit(number), 1, NOW)) == [f"{number}"]


async def test_a_key_stands_once_in_a_partition(index: QuestionIndex) -> None:
    await index.add(question("a", 1))
    await index.add(question("a", 2, text="new", expires_at=NOW + 90))
    found = await index.nearest(PART, "acme", unit(1), 8, NOW)
    assert [(one.question.text, one.question.expires_at) for one in found] == [("new", NOW + 90)]
    await index.add(question("a", 2, partition=b"q" * 32))
    assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]


@pytest.mark.parametrize("before", [0, 2 * GRAPH_FROM])
async def test_what_is_removed_is_not_found(index: QuestionIndex, before: int) -> None:
    for number in range(before):
        await index.add(question(f"old{number}", -1 * unit(1) + unit(number + 10)))
    await index.add(question("a", 1))
    await index.add(question("b", 1))
    await index.remove(PART, b"a")
    await index.remove(PART, b"unknown")
    await index.remove(b"unknown", b"a")
    assert keys(await index.nearest(PART, "acme", unit(1), 1, NOW)) == ["b"]
    await index.remove(PART, b"b")
    found = keys(await index.nearest(PART, "acme", unit(1), before + 2, NOW))
    assert not {"a", "b"} & set(found)
    assert bool(found) == bool(before)
    await index.add(question("a", 1))
    assert keys(await index.nearest(PART, "acme", unit(1), 1, NOW)) == ["a"]


@pytest.mark.parametrize("living", [3, 2 * GRAPH_FROM])
async def test_nothing_is_found_behind_its_time_and_what_is_expired_hides_nothing(index: QuestionIndex, living: int) -> None:
    for number in range(living):
        await index.add(question(f"late{number}", number, expires_at=NOW + 90))
    for number in range(200):
        await index.add(question(f"soon{number}", 1000))
    found = keys(await index.nearest(PART, "acme", unit(1000), 8, NOW))
    assert [one[:4] for one in found] == ["soon"] * 8
    for most in (500, 8, 8, 8, 8, 500):
        found = keys(await index.nearest(PART, "acme", unit(1000), most, NOW + 60))
        assert [one[:4] for one in found] == ["late"] * min(most, living)
    assert await index.nearest(PART, "acme", unit(1000), 8, NOW + 90) == []


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(owner="acme"), ""),
        (Selection(owner="acme", model="m"), "b"),
        (Selection(owner="acme", namespace="n"), "ab"),
        (Selection(owner="acme", user="u"), "bc"),
        (Selection(owner="acme", before=NOW + 1), "c"),
        (Selection(owner="acme", model="m", user="u"), "bc"),
        (Selection(owner="bolt"), "abc"),
    ],
)
async def test_a_purge_removes_what_it_selects(index: QuestionIndex, selection: Selection, left: str) -> None:
    await index.add(question("a", 1, user="u"))
    await index.add(question("b", 2, model="other", partition=b"q" * 32))
    await index.add(question("c", 3, kept_at=NOW + 1, namespace="n"))
    await index.add(question("z", 1, owner="carl"))
    assert await index.purge(selection) == 3 - len(left)
    found = [*await index.nearest(PART, "acme", unit(1), 8, NOW), *await index.nearest(b"q" * 32, "acme", unit(1), 8, NOW)]
    assert sorted(keys(found)) == sorted(left)
    assert keys(await index.nearest(PART, "carl", unit(1), 8, NOW)) == ["z"]


async def test_text_of_any_characters_is_kept(index: QuestionIndex) -> None:
    """A character that a database does not take costs that character at most."""
    await index.add(question("a", 1, text="a\ud800b"))
    await index.add(question("b", 2, text="a\0b"))
    assert {one.question.text for one in await index.nearest(PART, "acme", unit(1), 8, NOW)} <= {"a\ud800b", "a?b", "a\0b", "ab"}
    assert sorted(keys(await index.nearest(PART, "acme", unit(1), 8, NOW))) == ["a", "b"]


async def test_what_is_no_vector_is_lost_and_harms_nothing(index: QuestionIndex) -> None:
    await index.add(question("a", 1))
    await index.add(question("nan", np.full(DIMENSIONS, np.nan, np.float32)))
    await index.add(question("none", np.zeros(0, np.float32)))
    await index.add(Question(partition=PART, owner="acme", key=b"odd", text="", vector=b"abc", kept_at=NOW, expires_at=NOW + 60))
    assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
    assert index.figures().lost == 3
    assert await index.nearest(PART, "acme", unit(1, 8), 8, NOW) == []
    await index.add(question("zeros", np.zeros(DIMENSIONS, np.float32)))
    found = await index.nearest(PART, "acme", unit(1), 8, NOW)
    assert [(one.question.key, one.similarity) for one in found] == [(b"a", pytest.approx(1, abs=1e-6)), (b"zeros", 0.0)]


@pytest.mark.req("R4")
async def test_nobody_finds_questions_of_others_though_they_are_the_same(index: QuestionIndex) -> None:
    """The same vector, key and text stand in every partition of every owner, one partition is in use by several owners, and whoever has
    none of it finds nothing. In memory 10^5 probes; each kind of index sees every pair of owner and partition."""
    rng = random.Random(4)
    parts = [bytes([number]) * 32 for number in range(8)]
    owners = ["acme", "acme2", "Acme", "group:acme", ""]
    own = {(part, owner) for part in parts for owner in owners if rng.random() < 0.5}
    for part, owner in sorted(own):
        await index.add(question("same", 1, partition=part, owner=owner, text="same"))
    pairs = [(part, owner) for part in [*parts, b"", b"x" * 32] for owner in [*owners, "acm", "%", "acme' OR '1'='1"]]
    probes = 100_000 if isinstance(index, MemoryQuestions) else 2 * len(pairs)
    foreign = missed = 0
    for number in range(probes):
        part, owner = pairs[number % len(pairs)]
        found = await index.nearest(part, owner, unit(1) if number < 200 else VECTOR, 8, NOW)
        foreign += sum((one.question.partition, one.question.owner) != (part, owner) for one in found)
        missed += len(found) != ((part, owner) in own)
    assert (foreign, missed) == (0, 0)


VECTOR = unit(1)


# in memory


async def test_one_owners_flood_costs_its_own_oldest_questions_alone() -> None:
    index = MemoryQuestions(owner_questions=100)
    for number in range(100):
        await index.add(question(f"{number}", number, owner="quiet"))
    for number in range(350):
        await index.add(
            question(f"{number}", number, partition=bytes([number % 5]) * 32, owner="loud", kept_at=NOW + number, expires_at=NOW + 999)
        )
    assert index.figures().evicted == 250
    assert len(await index.nearest(PART, "quiet", unit(1), 200, NOW)) == 100
    left = [one for part in range(5) for one in keys(await index.nearest(bytes([part]) * 32, "loud", unit(1), 200, NOW))]
    assert sorted(map(int, left)) == list(range(250, 350))


async def test_memory_is_bounded_and_whoever_has_most_makes_room() -> None:
    each = 2 * 4 * DIMENSIONS + 1000
    index = MemoryQuestions(max_bytes=100 * each)
    for number in range(30):
        await index.add(question(f"{number}", number, owner="quiet"))
    for number in range(500):
        await index.add(question(f"{number}", number, owner="loud", partition=bytes([number % 2]) * 32))
        assert index.size <= 100 * each
    assert len(await index.nearest(PART, "quiet", unit(1), 99, NOW)) == 30
    await index.add(question("late", 1, owner="late"))
    assert keys(await index.nearest(PART, "late", unit(1), 8, NOW)) == ["late"]
    await index.add(question("giant", 1, text="x" * 100 * each))
    assert index.figures().lost == 1


async def test_expired_questions_make_room_first_and_are_not_evictions() -> None:
    index = MemoryQuestions(owner_questions=3)
    for number in range(3):
        await index.add(question(f"{number}", number))
    await index.add(question("new", 9, kept_at=NOW + 60, expires_at=NOW + 120))
    assert (index.figures().questions, index.figures().evicted) == (1, 0)


async def test_nothing_is_left_behind() -> None:
    index = MemoryQuestions(exact_most=10)
    rng = random.Random(1)
    for number in range(400):
        await index.add(question(f"{rng.randrange(60)}", number, owner=rng.choice("ab"), partition=rng.choice((PART, b"q" * 32))))
        await index.remove(PART, f"{rng.randrange(60)}".encode())
        assert index.size >= index.figures().questions * 900
    for owner in "ab":
        await index.purge(Selection(owner=owner))
    assert (index.size, len(index), index._partitions, index._owners, index._with_graph) == (0, 0, {}, {}, set())
    await index.close()


async def test_of_equal_ones_the_newest_comes_first(index: QuestionIndex) -> None:
    for number in range(5):
        await index.add(question(f"{number}", 1, kept_at=NOW + number % 3))
    found = await index.nearest(PART, "acme", unit(1), 8, NOW)
    assert [one.question.kept_at - NOW for one in found] == [2, 1, 1, 0, 0]


async def test_a_graph_finds_nearly_all_that_a_scan_finds() -> None:
    scanned, searched = MemoryQuestions(), MemoryQuestions(exact_most=200)
    for number in range(1_000):
        for index in (scanned, searched):
            await index.add(question(f"{number}", number))
    (part,) = searched._with_graph
    assert part.graph is not None
    for number in range(0, 1_000, 3):  # a third goes, among them vectors that the graph leads over
        for index in (scanned, searched):
            await index.remove(PART, f"{number}".encode())
    while part.graph.behind:
        await asyncio.sleep(0)
    hits = 0
    for number in range(200):
        vector = unit(10_000 + number)
        best = keys(await scanned.nearest(PART, "acme", vector, 1, NOW))
        hits += best == keys(await searched.nearest(PART, "acme", vector, 1, NOW))
    assert hits >= 190
    assert part.graph.failure is None
    await searched.close()


async def test_without_room_for_a_graph_a_partition_is_scanned() -> None:
    index = MemoryQuestions(max_bytes=30 * 1100, exact_most=20)
    for number in range(28):
        await index.add(question(f"{number}", number))
    assert index._with_graph == set()
    assert keys(await index.nearest(PART, "acme", unit(25), 1, NOW)) == ["25"]
    await index.close()


async def test_a_scan_in_a_thread_names_nothing_that_went_meanwhile() -> None:
    index = MemoryQuestions(on_loop_most=0)
    for number in range(300):
        await index.add(question(f"{number}", 7))
    for number in range(0, 300, 10):
        looking = asyncio.ensure_future(index.nearest(PART, "acme", unit(7), 8, NOW))
        await asyncio.sleep(0)
        for gone in range(number, number + 10):
            await index.remove(PART, f"{gone}".encode())
        found = keys(await looking)
        assert not {f"{gone}" for gone in range(number + 10)} & set(found)
    assert len(index) == 0
    await index.close()


# in Postgres


async def test_workers_share_what_they_keep(url: str) -> None:
    one, other = PostgresQuestions(url, At(), patience_s=PATIENCE_S), PostgresQuestions(url, At(), patience_s=PATIENCE_S)
    await asyncio.gather(one.start(), other.start())
    await one.add(question("a", 1))
    assert keys(await other.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
    await one.close()
    await other.close()


async def test_an_owner_is_trimmed_to_its_quota_within_a_hundredth(url: str) -> None:
    index = PostgresQuestions(url, At(), owner_questions=200, patience_s=PATIENCE_S)
    await index.start()
    await index.add(question("quiet", 1, owner="quiet"))
    for number in range(301):
        await index.add(question(f"{number}", number, kept_at=NOW + number // 7))
    left = {int(key) for key in keys(await index.nearest(PART, "acme", unit(1), 500, NOW))}
    assert 200 <= len(left) <= 202
    assert set(range(105, 301)) <= left  # the oldest have gone; of equal age it may be any
    assert index.figures().evicted == 301 - len(left)
    assert keys(await index.nearest(PART, "quiet", unit(1), 8, NOW)) == ["quiet"]
    await index.close()


async def test_expired_rows_are_swept_now_and_then(url: str) -> None:
    clock = At()
    index = PostgresQuestions(url, clock, patience_s=PATIENCE_S)
    await index.start()
    for number in range(5):
        await index.add(question(f"{number}", number))
    clock.now = SWEEP_EVERY_S
    await index.add(question("new", 9, kept_at=NOW + 60, expires_at=NOW + 120))
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("SELECT count(*) FROM tidegate_questions") == 1
    await connection.close()
    await index.close()


async def test_a_database_that_is_slow_has_no_questions_and_is_left_alone(url: str) -> None:
    clock = At()
    index = PostgresQuestions(url, clock, patience_s=PATIENCE_S)
    await index.start()
    await index.add(question("a", 1))
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("LOCK TABLE tidegate_questions IN ACCESS EXCLUSIVE MODE")
        index._patience_s = 0.02
        assert await index.nearest(PART, "acme", unit(1), 8, NOW) == []
        index._patience_s = PATIENCE_S
        assert await index.nearest(PART, "acme", unit(1), 8, NOW) == []  # at once: the database rests, and the table is still locked
        await index.add(question("b", 1))
    await connection.close()
    assert (index.figures().away, index.figures().lost) == (2, 1)
    clock.now = REST_S
    assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
    await index.close()


async def test_a_database_that_is_away_is_said_at_the_start_and_tried_again(url: str, tmp_path: Any) -> None:
    clock = At()
    index = PostgresQuestions(f"postgresql://postgres@/test?host={tmp_path}", clock, patience_s=PATIENCE_S)
    with pytest.raises(QuestionsAway, match="cannot be reached"):
        await index.start()
    assert await index.nearest(PART, "acme", unit(1), 8, NOW) == []
    with pytest.raises(QuestionsAway):
        await index.purge(Selection(owner="acme"))
    index._url = url
    clock.now = REST_S
    await index.add(question("a", 1))
    assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
    assert (index.figures().away, index.figures().lost) == (1, 0)
    await index.close()


async def test_a_role_without_rights_is_told_what_to_do_and_needs_few(url: str) -> None:
    connection = await asyncpg.connect(url)
    name = await connection.fetchval("SELECT current_database()")
    role = f"weak_{name}"
    await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    weak = url.replace("//postgres:@", f"//{role}:x@").replace("//postgres@", f"//{role}:x@")
    try:
        index = PostgresQuestions(weak, At(), patience_s=PATIENCE_S)
        with pytest.raises(QuestionsUnusable, match="CREATE EXTENSION IF NOT EXISTS vector"):
            await index.start()
        assert await index.nearest(PART, "acme", unit(1), 8, NOW) == []
        await index.close()
        await connection.execute("CREATE EXTENSION vector")
        with pytest.raises(QuestionsUnusable, match="GRANT CREATE ON SCHEMA public"):
            await index.start()
        strong = PostgresQuestions(url, At(), patience_s=PATIENCE_S)
        await strong.start()
        await strong.close()
        await connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON tidegate_questions TO {role}")
        index = PostgresQuestions(weak, At(), patience_s=PATIENCE_S)
        await index.start()
        await index.add(question("a", 1))
        assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
        await index.close()
    finally:
        await connection.execute(f"DROP OWNED BY {role}")
        await connection.execute(f"DROP ROLE {role}")
        await connection.close()


async def test_an_error_of_one_statement_stops_no_other(url: str) -> None:
    index = PostgresQuestions(url, At(), patience_s=PATIENCE_S)
    await index.start()
    with pytest.raises(QuestionsAway, match="DivisionByZero"):
        await index._ask(lambda connection: connection.fetch("SELECT 1 / 0"), PATIENCE_S)
    await index.add(question("a", 1))
    assert keys(await index.nearest(PART, "acme", unit(1), 8, NOW)) == ["a"]
    await index.close()
