import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lightkube.resources.discovery_v1 import EndpointSlice

from backends.discovery.kubernetes import watch
from backends.discovery.kubernetes.slices import SliceQuery, SliceSource, members_of, port_of
from backends.discovery.kubernetes.watch import ClusterAccess, LabelRule
from domain.membership import Member, SourceError
from tests.kubernetes_api import KubernetesApi, endpoint, kubernetes_api, labelled, leaving, pod
from tests.timing import hang_s

QUERY = SliceQuery("chat", "engines", service="chat", grace_s=30.0)
RULE = LabelRule("r2", "chat", labelled=True)


def slices(*pieces: dict[str, Any]) -> list[Any]:
    return [EndpointSlice.from_dict(json.loads(json.dumps(piece))) for piece in pieces]


def addresses(members: Sequence[Member]) -> list[str]:
    return [member.address for member in members]


class World:
    def __init__(self, api: KubernetesApi, rule: LabelRule = QUERY.rule, **access: Any) -> None:
        self.now = 0.0
        query = msgspec.structs.replace(QUERY, rule=rule)
        self.source = SliceSource(query, ClusterAccess(api.url, **access), lambda: self.now, random.Random(1))

    async def refused(self) -> str:
        with pytest.raises(SourceError) as raised:
            await self.source.read()
        return str(raised.value)


def test_an_endpoint_is_a_backend_with_its_zone_and_role() -> None:
    (member,) = members_of(slices(labelled("a", endpoint("10.0.0.5", zone="z1"), tidegate__role="decode")), QUERY)
    assert (member.id, member.url, member.address) == ("chat-10.0.0.5-8000", "http://10.0.0.5:8000", "10.0.0.5")
    assert (member.owner, member.role, member.traits.region, member.drain_grace_s) == ("kubernetes", "decode", "z1", None)


@pytest.mark.parametrize(
    ("conditions", "grace_s"),
    [
        ({"ready": True}, [None]),
        ({"ready": False, "serving": False, "terminating": False}, []),
        ({"ready": False, "serving": True, "terminating": True}, [30.0]),
        ({"ready": False, "serving": False, "terminating": True}, [30.0]),
        ({"serving": True}, [None]),
    ],
)
def test_conditions_say_whether_an_endpoint_takes_requests_drains_or_is_none(conditions: dict[str, bool], grace_s: list[Any]) -> None:
    members = members_of(slices(labelled("a", endpoint("10.0.0.5", **conditions))), QUERY)
    assert [member.drain_grace_s for member in members] == grace_s


def test_an_endpoint_in_two_slices_or_of_two_families_is_one_backend() -> None:
    six = labelled("c", endpoint("fd00::5", uid="p1"), endpoint("fd00::6", uid="p2"), family="IPv6")
    names = labelled("d", endpoint("engine.example"), family="FQDN")
    found = members_of(
        slices(six, names, labelled("a", endpoint("10.0.0.5", uid="p1")), labelled("b", leaving("10.0.0.5", uid="p1"))), QUERY
    )
    assert addresses(found) == ["10.0.0.5", "fd00::6"]
    assert [member.drain_grace_s for member in found] == [30.0, None]
    assert found[1].url == "http://[fd00::6]:8000"


def test_more_endpoints_than_a_source_may_have_are_an_error_and_none_is_left_out() -> None:
    many = [endpoint(f"10.0.{number // 256}.{number % 256}") for number in range(1001)]
    assert len(members_of(slices(labelled("a", *many[:1000])), QUERY)) == 1000
    with pytest.raises(SourceError, match=r"the endpoints of \S+ are 1001 backends, and a pool has at most 1000 of one source"):
        members_of(slices(labelled("a", *many[:600]), labelled("b", *many[600:])), QUERY)


def test_the_port_is_found_by_number_name_or_as_the_only_one() -> None:
    two = [
        {"name": "http", "port": 8000},
        {"name": "metrics", "port": 9000, "protocol": "TCP"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    both, one, none = slices(labelled("a", ports=two), labelled("b"), labelled("c", ports=[]))
    assert [port_of(both, wanted) for wanted in (None, "metrics", "dns", 8000, 53)] == [None, 9000, None, 8000, None]
    assert (port_of(one, None), port_of(none, 8000), port_of(none, None)) == (8000, 8000, None)


def test_a_certificate_is_for_the_name_of_the_service() -> None:
    query = SliceQuery("chat", "engines", service="chat", scheme="https")
    (member,) = members_of(slices(labelled("a", endpoint("10.0.0.5"))), query)
    assert (member.url, member.address) == ("https://chat.engines.svc:8000", "10.0.0.5")


async def test_pages_are_listed_and_then_changes_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PAGE", 2)
    async with kubernetes_api(*(labelled(f"s{i}", endpoint(f"10.0.0.{i}")) for i in range(5))) as api:
        source = World(api).source
        assert len(await source.read()) == 5
        assert [asked.get("continue") for asked in api.asked] == [None, "s1", "s3"]
        api.put(labelled("s5", endpoint("10.0.0.5")))
        api.put(labelled("s0", leaving("10.0.0.0")))
        seen: Sequence[Member] = ()
        while len(seen) < 6 or seen[0].drain_grace_s is None:  # one read takes both, or each takes one
            seen = await source.read()
        assert seen[0].drain_grace_s == 30.0
        api.delete("s1")
        assert "10.0.0.1" not in addresses(await source.read())
        assert api.asked[-1]["labelSelector"] == "kubernetes.io/service-name=chat"
        assert (api.lists, len(api.asked)) == (3, 4)
        await source.close()


async def test_a_lost_connection_goes_on_from_the_version_of_the_last_bookmark() -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1"))) as api:
        world = World(api)
        await world.source.read()
        api.bookmark()
        await world.source.read()
        api.compact()
        api.cut()
        assert "cannot be read" in await world.refused()
        api.put(labelled("b", endpoint("10.0.0.2")))
        assert addresses(await world.source.read()) == ["10.0.0.1", "10.0.0.2"]
        assert api.lists == 1
        assert api.asked[-1]["resourceVersion"] == "102"
        await world.source.close()


@pytest.mark.parametrize("as_event", [True, False])
async def test_changes_that_are_gone_are_listed_again(as_event: bool) -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1")), labelled("b", endpoint("10.0.0.2"))) as api:
        world = World(api)
        await world.source.read()
        if as_event:
            api.bookmark()
            await world.source.read()
            api.say_gone()
        else:
            api.delete("b")
            api.compact()
        assert len(await world.source.read()) == 2
        assert world.source.every_s >= 0.5
        if as_event:
            api.delete("b")
        assert addresses(await world.source.read()) == ["10.0.0.1"]
        assert api.lists == 2
        await world.source.close()


async def test_a_line_that_is_no_event_makes_it_list_again() -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1"))) as api:
        world = World(api)
        await world.source.read()
        api.bookmark()
        await world.source.read()
        api.say("{torn")
        assert "sends what is no EndpointSlice" in await world.refused()
        await world.source.read()
        assert api.lists == 2
        await world.source.close()


async def test_a_refusal_names_the_token_file_or_the_role_that_is_missing(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1"))) as api:
        api.token = "old"
        world = World(api, token_file=str(token))
        await world.source.read()
        api.token = "new"
        api.cut()
        await world.source.close()
        assert f"does not accept the token (401); look at token_file {token}" in await world.refused()
        token.write_text("new\n")
        api.put(labelled("b", endpoint("10.0.0.2")))
        assert len(await world.source.read()) == 2
        api.forbidden = True
        await world.source.close()
        assert 'resources ["endpointslices"], verbs ["list", "watch"]' in await world.refused()
        token.unlink()
        await world.source.close()
        assert f"Token file {token} not found" in await world.refused()


async def test_a_silent_server_is_given_up_and_asked_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ASK_WITHIN_S", 0.05)
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1"))) as api:
        world = World(api)
        assert world.source.every_s == watch.PACE_S
        api.silent = True
        pauses = []
        for _ in range(7):
            assert "does not answer in time" in await world.refused()
            pauses.append(world.source.every_s)
        assert all(0.5 * 2**i <= pause <= 2.0**i for i, pause in enumerate(pauses[:5]))
        assert all(15.0 <= pause <= 30.0 for pause in pauses[5:])
        world.now = 301.0
        assert "for more than five minutes" in await world.refused()
        api.silent = False
        assert len(await world.source.read()) == 1
        assert world.source.every_s == watch.PACE_S
        await world.source.close()


async def test_silence_on_a_watch_ends_it_and_the_servers_own_end_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1"))) as api:
        world = World(api)
        monkeypatch.setattr(watch, "WATCH_S", 0)
        await world.source.read()
        assert len(await world.source.read()) == 1
        assert world.source.every_s >= 0.5
        monkeypatch.setattr(watch, "WATCH_S", 60)
        monkeypatch.setattr(watch, "SILENT_S", 0.05)
        assert "does not answer in time" in await world.refused()


async def test_no_slice_at_all_is_no_answer() -> None:
    async with kubernetes_api() as api:
        world = World(api)
        assert "no EndpointSlice of engines/chat; create the Service" in await world.refused()
        api.put(labelled("a"))
        assert await world.source.read() == []
        await world.source.close()


async def test_a_missing_client_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise ImportError("lightkube")

    monkeypatch.setattr(watch, "ObjectApi", missing)
    async with kubernetes_api() as api:
        assert "pip install 'tidegate[kubernetes]'" in await World(api).refused()


def ours(name: str, **labels: str) -> dict[str, Any]:
    return pod(name, "10.0.0.9", **{"tidegate__pool": "chat", "tidegate__revision": "r2"} | labels)


async def until_addresses(source: SliceSource, *wanted: str) -> None:
    for _ in range(20):
        if addresses(await source.read()) == list(wanted):
            return
    raise AssertionError(wanted)


def test_a_slice_that_names_another_revision_is_left_out_and_one_that_names_none_is_not() -> None:
    query = msgspec.structs.replace(QUERY, rule=LabelRule("r2"))
    pieces = [labelled("a", endpoint("10.0.0.1"), tidegate__revision="r1"), labelled("b", endpoint("10.0.0.2"))]
    pieces += [labelled("c", endpoint("10.0.0.3"), endpoint("10.0.0.4", ready=False), tidegate__revision="r2")]
    left_out: Counter[str] = Counter()
    assert addresses(members_of(slices(*pieces), query, left_out=left_out)) == ["10.0.0.2", "10.0.0.3"]
    assert left_out == {"tidegate/revision r1": 1}


async def test_the_labels_of_pods_choose_among_the_endpoints_of_one_service() -> None:
    points = [endpoint(f"10.0.0.{number}", uid=f"p{number}") for number in (1, 2, 3)]
    pods = [ours("p1", tidegate__role="decode"), ours("p2", tidegate__revision="r1"), ours("p3", tidegate__pool="other")]
    async with kubernetes_api(labelled("a", *points), *pods) as api:
        source = World(api, RULE).source
        (member,) = await source.read()
        assert (member.address, member.role) == ("10.0.0.1", "decode")
        assert source.left_out == {"not tidegate/pool=chat,tidegate/revision=r2": 2}
        api.put(ours("p2"))
        await until_addresses(source, "10.0.0.1", "10.0.0.2")
        api.put(labelled("a", leaving("10.0.0.1", uid="p1"), *points[1:]))
        await until_addresses(source, "10.0.0.1", "10.0.0.2")
        assert [each.drain_grace_s for each in (await read_after(source, api))] == [30.0, None]
        api.put(ours("p1", tidegate__revision="r1"))
        await until_addresses(source, "10.0.0.2")
        assert {asked["kind"]: asked["labelSelector"] for asked in api.asked} == {
            "EndpointSlice": "kubernetes.io/service-name=chat",
            "Pod": "tidegate/pool=chat,tidegate/revision=r2",
        }
        assert api.lists == 2
        await source.close()


async def read_after(source: SliceSource, api: KubernetesApi) -> Sequence[Member]:
    api.bookmark()
    return await source.read()


async def test_a_pod_that_is_not_asked_for_its_revision_may_have_none_but_no_other_one() -> None:
    points = [endpoint(f"10.0.0.{number}", uid=f"p{number}") for number in (1, 2, 3)]
    pods = [ours("p1"), ours("p2", tidegate__revision="r1"), ours("p3", tidegate__revision="")]
    async with kubernetes_api(labelled("a", *points, endpoint("10.0.0.4")), *pods) as api:
        source = World(api, LabelRule("r2", "chat")).source
        assert addresses(await source.read()) == ["10.0.0.1", "10.0.0.3"]
        assert source.left_out == {"tidegate/revision r1": 1, "no tidegate/pool": 1}, "an endpoint that is no pod has its slice's labels"
        await source.close()


async def test_pods_that_may_not_be_read_are_told_and_mended() -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1", uid="p1")), ours("p1")) as api:
        api.forbidden_kinds.add("Pod")
        world = World(api, RULE)
        assert 'apiGroups [""], resources ["pods"], verbs ["list", "watch"]' in await world.refused()
        api.forbidden_kinds.clear()
        assert addresses(await world.source.read()) == ["10.0.0.1"]
        api.forbidden_kinds.add("Pod")
        api.cut()
        said = ""
        while 'resources ["pods"]' not in said or not world.source.trouble:
            said = await world.refused()
        assert 'resources ["pods"]' in world.source.trouble
        assert world.source.every_s >= 0.5
        api.put(labelled("a", leaving("10.0.0.1", uid="p1")))
        grace = None
        async with asyncio.timeout(hang_s()):
            while grace is None:
                try:
                    grace = (await world.source.read())[0].drain_grace_s
                except SourceError:
                    await asyncio.sleep(0.01)
        assert grace == 30.0, "slices are followed by the labels that were known last"
        assert 'resources ["pods"]' in world.source.trouble, "and the source says that it does not know all"
        api.forbidden_kinds.clear()
        async with asyncio.timeout(hang_s()):
            while world.source.trouble:
                api.bookmark()
                with contextlib.suppress(SourceError):
                    await world.source.read()
                await asyncio.sleep(0.01)
        await world.source.close()


async def test_changes_of_pods_that_are_gone_are_listed_again_while_slices_are_watched() -> None:
    async with kubernetes_api(labelled("a", endpoint("10.0.0.1", uid="p1")), ours("p1")) as api:
        source = World(api, RULE).source
        await source.read()
        api.put(ours("p1"))
        await source.read()
        api.say_gone()
        await until_addresses(source, "10.0.0.1")
        api.delete("p1", "Pod")
        await until_addresses(source)
        await source.close()
