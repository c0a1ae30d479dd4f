"""Names of hosts outside the fleet: they are looked up beside the loop's own threads, and only addresses that were checked are used."""

import asyncio
import threading
from typing import Any

import pytest

from backends.reach import is_public
from gateway.http.checked_address import AddressRefused, Resolver, checked_address


@pytest.mark.req("R40")
async def test_a_host_with_one_address_that_may_not_be_reached_is_refused_whole() -> None:
    async def resolve(host: str, _port: int) -> list[str]:
        return {"good": ["93.184.216.34"], "mixed": ["93.184.216.34", "10.0.0.5"]}.get(host, [])

    assert await checked_address(resolve, is_public, "good", 443) == "93.184.216.34"
    for host in ("mixed", "nothing"):
        with pytest.raises(AddressRefused):
            await checked_address(resolve, is_public, host, 443)


async def test_names_that_nobody_resolves_hold_a_bounded_number_of_threads() -> None:
    let_go, asked = threading.Event(), []

    def ask(host: str, _port: int, type: int) -> list[Any]:
        asked.append(host)
        let_go.wait(60)
        return [(type, 0, 0, "", ("93.184.216.34", 80))] * 2

    resolver = Resolver(ask, most=2)
    lookups = [asyncio.create_task(resolver(f"{at}.test", 80)) for at in range(3)]
    while len(asked) < 2:
        await asyncio.sleep(0.005)
    for lookup in lookups[:2]:
        lookup.cancel()
    await asyncio.wait(lookups[:2])
    await asyncio.sleep(0)
    assert len(asked) == 2, "a thread whose asker has gone still counts"
    let_go.set()
    assert await lookups[2] == ["93.184.216.34"]


async def test_the_systems_resolver_is_asked_beside_the_loops_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    assert await Resolver()("127.0.0.1", 80) == ["127.0.0.1"]
    with pytest.raises(OSError):
        await Resolver(lambda *_args, **_named: (_ for _ in ()).throw(OSError("no such name")))("images.test", 80)
