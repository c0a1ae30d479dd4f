import pytest

from backends.discovery.engine_ports import PortedSource, with_ports
from domain.membership import EnginePorts, KvEvents, LoadPush, Member, Role, SourceError

PORTS = EnginePorts(kv_events=5557, kv_replay=5657, load_push=5800, load_push_ranks=2, bootstrap=8998)


def member(address: str, port: int = 8000, role: Role = "both") -> Member:
    return Member("chat", f"{address}-{port}", f"https://chat.engines.svc:{port}", "kubernetes", address, role=role)


class Source:
    """A source that gives what it is told to."""

    name, owner, pool, every_s, keep_s = "Kubernetes chat", "kubernetes", "chat", 0.2, 600.0

    def __init__(self) -> None:
        self.members = [member("10.0.0.1")]
        self.closed = False

    async def read(self) -> list[Member]:
        if not self.members:
            raise SourceError("away")
        return self.members

    async def close(self) -> None:
        self.closed = True


def test_ports_are_at_the_address_of_each_engine() -> None:
    four, six = with_ports([member("10.0.0.1"), member("fd00::1")], PORTS)
    assert four.kv_events == KvEvents("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657")
    assert four.load_push == LoadPush("tcp://10.0.0.1:5800", 2)
    assert six.kv_events == KvEvents("tcp://[fd00::1]:5557", "tcp://[fd00::1]:5657")
    (bare,) = with_ports([member("10.0.0.1")], EnginePorts())
    assert (bare.kv_events, bare.load_push, bare.bootstrap) == (None, None, None)


def test_only_prefill_engines_have_a_port_for_kv_and_it_is_at_their_own_address() -> None:
    prefill, decode = with_ports([member("10.0.0.1", role="prefill"), member("10.0.0.2", role="decode")], PORTS)
    assert (prefill.bootstrap, decode.bootstrap) == (("10.0.0.1", 8998), None)


def test_ranks_on_one_address_have_consecutive_ports() -> None:
    found = with_ports([member("10.0.0.1", 8001), member("10.0.0.2", 8001), member("10.0.0.1", 8000)], PORTS)
    assert [each.kv_events.endpoint for each in found if each.kv_events] == [
        "tcp://10.0.0.1:5558",
        "tcp://10.0.0.2:5557",
        "tcp://10.0.0.1:5557",
    ]
    assert [each.load_push.endpoint for each in found if each.load_push] == [
        "tcp://10.0.0.1:5802",
        "tcp://10.0.0.2:5800",
        "tcp://10.0.0.1:5800",
    ]
    beyond = with_ports([member("10.0.0.1", 8000), member("10.0.0.1", 8001)], EnginePorts(kv_events=65_535))
    assert [each.kv_events is None for each in beyond] == [False, True]


async def test_a_source_is_the_same_but_for_the_ports_of_its_members() -> None:
    source = Source()
    ported = PortedSource(source, PORTS)  # type: ignore[arg-type]  # its class attributes are no literals
    assert (ported.name, ported.owner, ported.pool, ported.every_s, ported.keep_s) == ("Kubernetes chat", "kubernetes", "chat", 0.2, 600.0)
    assert (await ported.read())[0].load_push == LoadPush("tcp://10.0.0.1:5800", 2)
    assert (ported.left_out, ported.trouble) == ({}, "")
    # as a source that chooses by labels has them
    source.left_out, source.trouble = {"tidegate/revision r1": 2}, "pods are forbidden"  # type: ignore[attr-defined]
    assert (ported.left_out, ported.trouble) == ({"tidegate/revision r1": 2}, "pods are forbidden")
    source.members = []
    with pytest.raises(SourceError):
        await ported.read()
    await ported.close()
    assert source.closed
