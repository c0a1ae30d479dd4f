"""Names asked of a name server of our own over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.asyncresolver
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from backends.discovery.dns import DnsSource, ResolvedAddresses, system_lookup
from domain.membership import SourceError

SERVFAIL = "SERVFAIL"
RECORDS: dict[tuple[str, str], list[str]] = {
    ("engines.test.", "A"): ["10.0.0.1", "10.0.0.2"],
    ("engines.test.", "AAAA"): ["fd00::1"],
    ("four.test.", "A"): ["10.0.0.4"],
    ("_llm._tcp.test.", "SRV"): ["0 0 8001 engines.test.", "0 0 8002 four.test.", "0 0 8003 gone.test."],
}


class NameServer(asyncio.DatagramProtocol):
    """Answers from `RECORDS`; names that begin with `hang` never, `fail` or with such a record with SERVFAIL."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        asked = dns.message.from_wire(data)
        (question,) = asked.question
        name, kind = str(question.name), dns.rdatatype.to_text(question.rdtype)
        if name.startswith("hang"):
            return
        answer = dns.message.make_response(asked)
        if name.startswith("fail") or RECORDS.get((name, kind)) == [SERVFAIL]:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif (name, kind) in RECORDS:
            answer.answer.append(dns.rrset.from_text(name, 1, "IN", kind, *RECORDS[name, kind]))
        elif name not in {known for known, _ in RECORDS}:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def name_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))

    class Ours(dns.asyncresolver.Resolver):
        def __init__(self) -> None:
            super().__init__(configure=False)
            self.nameservers = ["127.0.0.1"]
            self.port = transport.get_extra_info("sockname")[1]

    monkeypatch.setattr(dns.asyncresolver, "Resolver", Ours)
    try:
        yield
    finally:
        transport.close()


async def test_addresses_of_both_kinds_and_services(monkeypatch: pytest.MonkeyPatch) -> None:
    async with name_server(monkeypatch):
        both = {ResolvedAddresses("10.0.0.1", 80), ResolvedAddresses("10.0.0.2", 80), ResolvedAddresses("fd00::1", 80)}
        assert set(await system_lookup("engines.test", 80)()) == both
        assert set(await system_lookup("_llm._tcp.test", None)()) == {
            *(ResolvedAddresses(one.address, 8001, "engines.test") for one in both),
            ResolvedAddresses("10.0.0.4", 8002, "four.test"),
        }
        for nobody in (system_lookup("none.test", 80), system_lookup("none.test", None), system_lookup("four.test", None)):
            assert await nobody() == []
        for fails in (system_lookup("fail.test", 80), system_lookup("fail.test", None)):
            with pytest.raises(OSError, match="NoNameservers"):
                await fails()


async def test_names_that_hang_stop_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.discovery.dns.LOOKUP_WITHIN_S", 3.0)
    async with name_server(monkeypatch):
        hanging = [DnsSource("chat", f"hang{n}.test", "http", 5.0, system_lookup(f"hang{n}.test", 80)) for n in range(40)]
        asked = [asyncio.create_task(source.read()) for source in hanging]
        await asyncio.sleep(0)
        assert len(await system_lookup("engines.test", 80)()) == 3
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)
        assert not any(task.done() for task in asked)
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(outcome, SourceError)
