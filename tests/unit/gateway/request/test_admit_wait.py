"""The router's reading of a prompt and the limits' count of it share one allowance of waiting."""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from gateway.prompt.count import BUDGET_S, PromptCounts
from gateway.request import admit
from tests.world.loop import VirtualLoop


class BusyThreads(VirtualLoop):
    """Time is virtual, and work in another thread takes 300 ms."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self._late = lambda: 0.0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        self.call_later(0.3, lambda: future.done() or future.set_result(func(*args)))
        return future


@pytest.mark.parametrize("read_s", [0.0, 0.015, BUDGET_S])
def test_a_prompt_that_the_router_cannot_count_is_waited_for_20_ms_in_all(read_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> Any:
        await asyncio.sleep(read_s)
        return SimpleNamespace(counted=False, late=False, tokens=9)  # as for a prompt with media

    monkeypatch.setattr(admit, "prompt_of", read)
    monkeypatch.setattr(admit, "worth_reading", lambda *_: True)
    loop = BusyThreads()
    vocabulary: Any = SimpleNamespace(slow_bytes=100, count=lambda *_: 7)
    pool = SimpleNamespace(name="chat")
    deps: Any = SimpleNamespace(
        live=SimpleNamespace(fleet=SimpleNamespace(pools={"chat": pool})),
        prompt_counts=PromptCounts({"chat": vocabulary}, ThreadPoolExecutor(1), loop),
    )
    story: Any = SimpleNamespace(asked=SimpleNamespace(prompt=None, tenant_policy=SimpleNamespace(routing=None)))
    caller: Any = SimpleNamespace(tenant="acme")
    rule: Any = SimpleNamespace(pool="chat", lora=None)
    ask = Ask(Endpoint.CHAT, "m", b"{}", False, False, 1, 200, None)
    began = loop.time()
    assert loop.run_until_complete(admit._prompt_tokens(caller, ask, rule, story, deps)) is None
    assert loop.time() - began == pytest.approx(BUDGET_S)
    loop.close()
