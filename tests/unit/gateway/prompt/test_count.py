"""Counting never holds up the loop, and never waits for longer than its budget."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt import count
from gateway.prompt.chat_template import NotText
from gateway.prompt.count import PromptCounts
from tenancy.estimate import MEDIA_TOKENS
from tests.timing import HANG_S


class Vocabulary:
    slow_bytes = 100

    def __init__(self, count: Callable[[Ask], int]) -> None:
        self._count = count

    def count(self, ask: Ask, scope: str = "") -> int:
        return self._count(ask)


def ask(size: int, text: bytes = b"{}") -> Ask:
    return Ask(Endpoint.CHAT, "m", text, False, False, 1, size, None)


async def counted(counting: Callable[[Ask], int], *asks: Ask) -> list[int | None]:
    """The counts, none of which is late however busy the machine is."""
    with ThreadPoolExecutor(1) as executor, pytest.MonkeyPatch.context() as patch:
        patch.setitem(PromptCounts.count.__kwdefaults__, "wait_s", HANG_S)
        counts = PromptCounts({"chat": Vocabulary(counting)}, executor, asyncio.get_running_loop())
        return [await counts.count(one, "chat") for one in asks]


async def test_small_ones_here_and_large_ones_elsewhere() -> None:
    main = threading.get_ident()
    assert await counted(lambda _: int(threading.get_ident() == main), ask(99), ask(100, b'{"a":1}')) == [1, 0]


async def test_a_pool_without_a_tokenizer_counts_nothing() -> None:
    with ThreadPoolExecutor(1) as executor:
        assert await PromptCounts({}, executor, asyncio.get_running_loop()).count(ask(10), "chat") is None


async def test_what_cannot_be_read_is_asked_once() -> None:
    calls = []

    def unreadable(one: Ask) -> int:
        calls.append(one)
        raise NotText("a picture")

    assert await counted(unreadable, ask(10), ask(10)) == [None, None]
    assert len(calls) == 1


async def test_a_count_is_remembered_for_its_own_tenant_alone() -> None:
    """Else a tenant's request would be the faster for another tenant's having sent the same."""
    asked = []
    with ThreadPoolExecutor(1) as executor:
        counts = PromptCounts({"chat": Vocabulary(lambda one: len(asked) + 5)}, executor, asyncio.get_running_loop())
        for scope in ("acme", "bolt", "acme", "bolt"):
            asked.append((scope, await counts.count(ask(10), "chat", scope)))
    assert asked == [("acme", 5), ("bolt", 6), ("acme", 5), ("bolt", 6)]


async def test_a_late_count_is_there_the_next_time() -> None:
    go = threading.Event()

    def slow(_: Ask) -> int:
        go.wait(HANG_S)
        return 7

    with ThreadPoolExecutor(1) as executor:
        counts = PromptCounts({"chat": Vocabulary(slow)}, executor, asyncio.get_running_loop())
        assert await counts.count(ask(200), "chat") is None
        go.set()
        async with asyncio.timeout(HANG_S):
            while await counts.count(ask(200), "chat") != 7:
                await asyncio.sleep(0)


async def test_memory_is_bounded(monkeypatch: object) -> None:
    with ThreadPoolExecutor(1) as executor:
        counts = PromptCounts({"chat": Vocabulary(lambda one: len(one.fields))}, executor, asyncio.get_running_loop())
        for n in range(count.MAX_REMEMBERED + 10):
            await counts.count(ask(10, b"%d" % n), "chat")
        assert len(counts._known) == count.MAX_REMEMBERED


async def test_ids_need_no_vocabulary_and_media_that_nobody_counts_are_bounded() -> None:
    with ThreadPoolExecutor(1) as executor:
        loop = asyncio.get_running_loop()
        ids = interpret(Endpoint.COMPLETIONS, b'{"model":"m","prompt":[[1,2,3],[4]]}')
        assert await PromptCounts({}, executor, loop).count(ids, "chat") == 4
    audio = b'{"model":"m","messages":[{"role":"user","content":[{"type":"audio_url","audio_url":"data:audio/wav;base64,AA"}]}]}'
    assert await counted(lambda _: 9, interpret(Endpoint.CHAT, audio)) == [9 + MEDIA_TOKENS]
