"""Kept questions in a Postgres with pgvector that several gateways share.

Every query names owner and partition, and what comes back is compared with both again. The rows of a partition are scanned exactly: an
approximate index over all rows would look at other tenants' vectors first, and would miss near ones of a small partition. The quota of an
owner bounds the scan. A database that is away, or slower than its patience, has no questions; it never fails a request.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
import numpy as np

from cache.ports import Selection
from cache.semantic.ports import IndexFigures, Neighbour, Question
from domain.clock import Clock

if TYPE_CHECKING:
    from cache.semantic.ports import Vector

PATIENCE_S: Final = 0.02
"""How long a look-up waits. A neighbour that comes later is worth less than beginning with the engine."""
WRITE_PATIENCE_S: Final = 1.0
PURGE_PATIENCE_S: Final = 30.0
CONNECT_S: Final = 5.0
REST_S: Final = 1.0
"""How long the database is not asked after it was away or too slow."""
CONNECTIONS: Final = 4
"""Connections of one worker at most."""
OWNER_QUESTIONS: Final = 5_000
"""Postgres compares about a thousand questions in a millisecond (`python -m bench.cache.embed`), and all may be in one partition."""
MAX_DIMENSIONS: Final = 16_000
COUNTED_OWNERS: Final = 1_000
"""Owners whose additions a worker counts; beyond, the one counted for longest is trimmed at once."""
SWEEP_EVERY_S: Final = 60.0
SWEPT_AT_ONCE: Final = 1_000

_LOCK: Final = "SELECT pg_advisory_xact_lock(7236836)"
"""Workers and gateways start at the same time, and `IF NOT EXISTS` alone does not keep two of them apart."""
_IS_THERE: Final = "SELECT to_regclass('tidegate_questions_end') IS NOT NULL"
_CREATE: Final = (
    "CREATE EXTENSION IF NOT EXISTS vector",
    """CREATE TABLE IF NOT EXISTS tidegate_questions (
        partition bytea NOT NULL, owner text NOT NULL, key bytea NOT NULL, text text NOT NULL, vector vector NOT NULL,
        kept_at double precision NOT NULL, expires_at double precision NOT NULL,
        model text NOT NULL, namespace text NOT NULL, writer text NOT NULL, end_user text NOT NULL,
        PRIMARY KEY (partition, owner, key))""",
    "CREATE INDEX IF NOT EXISTS tidegate_questions_age ON tidegate_questions (owner, kept_at, partition, key)",
    "CREATE INDEX IF NOT EXISTS tidegate_questions_end ON tidegate_questions (expires_at)",
)
_SCHEMA: Final = "SELECT n.nspname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = 'vector'::regtype"
_COLUMNS: Final = "partition, owner, key, text, vector, kept_at, expires_at, model, namespace, writer, end_user"
_NEAREST: Final = f"""SELECT {_COLUMNS}, -(vector <#> $3) AS similarity FROM tidegate_questions
    WHERE partition = $1 AND owner = $2 AND expires_at > $4 AND vector_dims(vector) = $5
    ORDER BY vector <#> $3, kept_at DESC LIMIT $6"""
_ADD: Final = f"""INSERT INTO tidegate_questions ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT (partition, owner, key) DO UPDATE SET text = excluded.text, vector = excluded.vector, kept_at = excluded.kept_at,
    expires_at = excluded.expires_at, model = excluded.model, namespace = excluded.namespace, writer = excluded.writer,
    end_user = excluded.end_user"""
_TRIM: Final = """DELETE FROM tidegate_questions WHERE owner = $1 AND (kept_at, partition, key) <= (
    SELECT kept_at, partition, key FROM tidegate_questions WHERE owner = $1
    ORDER BY kept_at DESC, partition DESC, key DESC OFFSET $2 LIMIT 1)"""
_SWEEP: Final = """DELETE FROM tidegate_questions WHERE (partition, owner, key) IN (
    SELECT partition, owner, key FROM tidegate_questions WHERE expires_at <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED)"""
_REMOVE: Final = "DELETE FROM tidegate_questions WHERE partition = $1 AND key = $2"
_PURGE: Final = """DELETE FROM tidegate_questions WHERE owner = $1 AND ($2 = '' OR model = $2) AND ($3 = '' OR namespace = $3)
    AND ($4 = '' OR end_user = $4) AND ($5::double precision IS NULL OR kept_at < $5)"""

_AWAY: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    OSError,
    TimeoutError,
)
"""Errors that say something about the database and not about one statement."""

_head = Struct(">HH")
_T = TypeVar("_T")


class QuestionsAway(Exception):
    """The database cannot be reached now, or is too slow; later it may be there."""


class _Refused(QuestionsAway):
    """The database is there and has not done this one thing, such as a removal that met another one; nothing else waits for that."""


class QuestionsUnusable(Exception):
    """The database cannot keep questions until somebody changes it; the text says how."""


class PostgresQuestions:
    """`cache.semantic.ports.QuestionIndex` in Postgres.

    Args:
        url: `postgresql://user:password@host:port/database`, as asyncpg takes it.
        clock: monotonic seconds.
        owner_questions: the most questions of one owner; the oldest goes first. Between two trims each worker may add a hundredth more.
        patience_s: how long a look-up waits.
    """

    def __init__(self, url: str, clock: Clock, owner_questions: int = OWNER_QUESTIONS, patience_s: float = PATIENCE_S) -> None:
        self._url = url
        self._clock = clock
        self._owner_questions = owner_questions
        self._patience_s = patience_s
        self._pool: Any = None
        self._opening: asyncio.Task[None] | None = None
        self._left: set[asyncio.Task[Any]] = set()
        """Calls that nobody waits for any more, until they have ended."""
        self._rests_until = -REST_S
        self._swept_at = clock()
        self._added: dict[str, int] = {}
        """Questions by owner since its last trim."""
        self.away = 0
        """Look-ups that were misses because the database was away or too slow."""
        self.lost = 0
        """Questions that could not be kept."""
        self.evicted = 0
        """Questions that had to make room."""

    async def start(self) -> None:
        """Connect, and make the extension and the table where they are missing.

        Raises:
            QuestionsAway: the database cannot be reached. The index may be used all the same: it tries again by itself.
            QuestionsUnusable: it can, and something is missing there; the text says what to do.
        """
        try:
            async with asyncio.timeout(2 * CONNECT_S):
                await self._open()
        except TimeoutError as error:
            raise QuestionsAway(f"no answer in {2 * CONNECT_S:g} s") from error

    async def nearest(self, partition: bytes, owner: str, vector: "Vector", most: int, now: float) -> list[Neighbour]:
        sent = np.asarray(vector, "<f4").tobytes()
        try:
            rows = await self._ask(
                lambda connection: connection.fetch(_NEAREST, partition, owner, sent, now, len(vector), most), self._patience_s
            )
        except QuestionsAway:
            self.away += 1
            return []
        found = [Neighbour(_question(row), row["similarity"]) for row in rows]
        return [one for one in found if _belongs(one.question, partition, owner, now)]

    async def add(self, question: Question) -> None:
        one = question
        text = one.text.replace("\0", "").encode("utf-8", "replace").decode()  # characters that Postgres does not keep
        row = (one.partition, one.owner, one.key, text, one.vector, one.kept_at, one.expires_at)
        try:
            if not _is_vector(one.vector):
                raise QuestionsAway("the vector is none")
            await self._ask(lambda of: of.execute(_ADD, *row, one.model, one.namespace, one.writer, one.user), WRITE_PATIENCE_S)
            await self._keep_house(question)
        except QuestionsAway:
            self.lost += 1

    async def _keep_house(self, question: Question) -> None:
        """Trim the owner to its quota, and take out what has expired; both now and then only."""
        owner = question.owner
        added = self._added[owner] = self._added.get(owner, 0) + 1
        if added * 100 >= self._owner_questions:
            await self._trim(owner)
        if len(self._added) > COUNTED_OWNERS:
            await self._trim(next(iter(self._added)))
        if self._clock() >= self._swept_at + SWEEP_EVERY_S:
            self._swept_at = self._clock()
            await self.sweep(question.kept_at)

    async def _trim(self, owner: str) -> None:
        self._added.pop(owner, None)
        self.evicted += _count(await self._ask(lambda of: of.execute(_TRIM, owner, self._owner_questions), WRITE_PATIENCE_S))

    async def sweep(self, now: float) -> int:
        """Remove expired questions, up to `SWEPT_AT_ONCE`; returns their number. Raises QuestionsAway."""
        return _count(await self._ask(lambda of: of.execute(_SWEEP, now, SWEPT_AT_ONCE), WRITE_PATIENCE_S))

    async def remove(self, partition: bytes, key: bytes) -> None:
        with suppress(QuestionsAway):  # its answer has gone, so it is found at most once more, without effect
            await self._ask(lambda of: of.execute(_REMOVE, partition, key), WRITE_PATIENCE_S)

    async def purge(self, selection: Selection) -> int:
        """Raises QuestionsAway while the database cannot be reached: whoever purges has to know."""
        conditions = (selection.owner, selection.model, selection.namespace, selection.user, selection.before)
        self._rests_until = -REST_S  # a purge is worth a try
        return _count(await self._ask(lambda of: of.execute(_PURGE, *conditions), PURGE_PATIENCE_S))

    def figures(self) -> IndexFigures:
        return IndexFigures(kind="postgres", evicted=self.evicted, away=self.away, lost=self.lost)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()  # nothing is under way that anybody waits for
            self._pool = None
        tasks = {*self._left, *([self._opening] if self._opening is not None else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CONNECT_S)

    async def _ask(self, call: Callable[[Any], Awaitable[_T]], patience_s: float) -> _T:
        """What a call on a connection returns, in time. Raises QuestionsAway."""
        if self._clock() < self._rests_until:
            raise QuestionsAway("the database rests")
        task = asyncio.ensure_future(self._called(call))
        self._left.add(task)
        task.add_done_callback(self._left.discard)
        try:
            done, _ = await asyncio.wait([task], timeout=patience_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not done:
            # not awaited: the driver waits until the server has confirmed that the query is cancelled
            task.cancel()
            task.add_done_callback(_ended)
            self._rests_until = self._clock() + REST_S
            raise QuestionsAway(f"no answer in {patience_s * 1000:g} ms")
        try:
            return task.result()
        except _Refused:
            raise
        except QuestionsAway:
            self._rests_until = self._clock() + REST_S
            raise

    async def _called(self, call: Callable[[Any], Awaitable[_T]]) -> _T:
        try:
            if self._pool is None:
                if self._opening is None:
                    self._opening = asyncio.ensure_future(self._open())
                    self._opening.add_done_callback(self._opened)
                await asyncio.shield(self._opening)  # connecting goes on when the patience of this call ends
            async with self._pool.acquire() as connection:
                return await call(connection)
        except QuestionsUnusable as error:
            raise QuestionsAway(str(error)) from error
        except _AWAY as error:
            raise QuestionsAway(f"{type(error).__name__}: {error}") from error
        except (asyncpg.PostgresError, ValueError) as error:
            raise _Refused(f"{type(error).__name__}: {error}") from error

    def _opened(self, opening: "asyncio.Task[None]") -> None:
        self._opening = None
        _ended(opening)

    async def _open(self) -> None:
        """A pool of connections to a prepared database. Raises as `start`; QuestionsUnusable is one of a call's reasons to rest too."""
        try:
            connection = await asyncpg.connect(self._url, timeout=CONNECT_S)
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
            raise QuestionsUnusable(f"the database for kept questions refuses: {error}") from error
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise QuestionsAway(f"the database for kept questions cannot be reached: {type(error).__name__}: {error}") from error
        try:
            async with connection.transaction():
                await connection.execute(_LOCK)
                if not await connection.fetchval(_IS_THERE):  # then a role does without the right to create
                    for statement in _CREATE:
                        await connection.execute(statement)
            schema = await connection.fetchval(_SCHEMA)
        except asyncpg.PostgresError as error:
            raise QuestionsUnusable(_remedy(error)) from error
        except (asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise QuestionsAway(f"the database for kept questions has gone: {type(error).__name__}: {error}") from error
        finally:
            connection.terminate()

        async def prepare(of: Any) -> None:
            await of.set_type_codec("vector", schema=schema, encoder=_to_postgres, decoder=_from_postgres, format="binary")

        try:
            self._pool = await asyncpg.create_pool(self._url, min_size=1, max_size=CONNECTIONS, init=prepare, timeout=CONNECT_S)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise QuestionsAway(f"the database for kept questions cannot be reached: {type(error).__name__}: {error}") from error


def _remedy(error: asyncpg.PostgresError) -> str:
    """What is to be done about an error of `_CREATE`."""
    if isinstance(error, asyncpg.UndefinedFileError | asyncpg.FeatureNotSupportedError):
        return (
            f"the Postgres for kept questions has no pgvector ({error}); install it on the server (on Debian the package "
            "postgresql-VERSION-pgvector) and start again, or leave the questions in memory"
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return (
            f"the role may not prepare the database for kept questions ({error}); let a superuser run there "
            '"CREATE EXTENSION IF NOT EXISTS vector" and "GRANT CREATE ON SCHEMA public TO" the role, and start again'
        )
    return f"the database for kept questions cannot be prepared: {type(error).__name__}: {error}"


def _ended(task: "asyncio.Task[Any]") -> None:
    """Look at the result of a task that nobody waits for, so that no warning is logged for it."""
    if not task.cancelled():
        task.exception()


def _belongs(question: Question, partition: bytes, owner: str, now: float) -> bool:
    """What the query has asked for, looked at once more."""
    return question.partition == partition and question.owner == owner and question.expires_at > now


def _question(row: Any) -> Question:
    return Question(
        partition=row["partition"],
        owner=row["owner"],
        key=row["key"],
        text=row["text"],
        vector=row["vector"],
        kept_at=row["kept_at"],
        expires_at=row["expires_at"],
        model=row["model"],
        namespace=row["namespace"],
        writer=row["writer"],
        user=row["end_user"],
    )


def _is_vector(vector: bytes) -> bool:
    """Whether pgvector takes it: 1 to 16,000 finite numbers."""
    return len(vector) % 4 == 0 and 0 < len(vector) <= 4 * MAX_DIMENSIONS and bool(np.isfinite(np.frombuffer(vector, "<f4")).all())


def _count(status: str) -> int:
    """The rows of a status such as `DELETE 3`."""
    return int(status.rpartition(" ")[2])


def _to_postgres(vector: bytes) -> bytes:
    """pgvector's binary form: the number of members, two empty bytes, the members with their high byte first."""
    return _head.pack(len(vector) // 4, 0) + np.frombuffer(vector, "<f4").astype(">f4").tobytes()


def _from_postgres(value: bytes) -> bytes:
    return np.frombuffer(value, ">f4", offset=_head.size).astype("<f4").tobytes()
