import json
import random
from typing import Any

import msgspec
import pytest
from lightkube.resources.core_v1 import Pod

from backends.discovery.kubernetes.pods import KSERVE_PORT, PodQuery, PodSource, facts_of, kserve_host, kserve_selector, members_of
from backends.discovery.kubernetes.watch import ClusterAccess, LabelRule
from domain.membership import Member, SourceError
from tests.kubernetes_api import KubernetesApi, kubernetes_api, pod, terminating

QUERY = PodQuery("chat", "engines", "app=vllm", grace_s=30.0)


def members(*pieces: dict[str, Any], **query: Any) -> list[Member]:
    facts = {each["metadata"]["name"]: facts_of(Pod.from_dict(json.loads(json.dumps(each)))) for each in pieces}
    return members_of(facts, PodQuery(**{"pool": "chat", "namespace": "engines", "selector": "app=vllm", "grace_s": 30.0} | query))


def source_of(api: KubernetesApi, rule: LabelRule = QUERY.rule) -> PodSource:
    return PodSource(
        msgspec.structs.replace(QUERY, rule=rule), "engines/pods app=vllm", ClusterAccess(api.url), lambda: 0.0, random.Random(1)
    )


def test_a_pod_is_a_backend_at_the_port_of_its_engine_with_zone_and_role() -> None:
    (member,) = members(pod("a", "10.0.0.5", zone="z1", **{"llm-d.ai__role": "decode"}))
    assert (member.id, member.url, member.address) == ("chat-10.0.0.5-8000", "http://10.0.0.5:8000", "10.0.0.5")
    assert (member.owner, member.role, member.traits.region, member.drain_grace_s) == ("kubernetes", "decode", "z1", None)
    (ours,) = members(pod("a", "10.0.0.5", tidegate__role="prefill", **{"llm-d.ai__role": "decode"}))
    assert ours.role == "prefill"


def test_only_a_ready_pod_takes_requests_and_one_that_terminates_drains() -> None:
    ready, not_ready, pending = pod("a", "10.0.0.1"), pod("b", "10.0.0.2", ready=False), pod("c", None)
    found = members(ready, not_ready, pending, terminating(pod("d", "10.0.0.4")), terminating(pod("e", "10.0.0.5", ready=False)))
    assert [(each.address, each.drain_grace_s) for each in found] == [("10.0.0.1", None), ("10.0.0.4", 30.0), ("10.0.0.5", 30.0)]


@pytest.mark.parametrize(("pod_has", "drain_s"), [(25, 20.0), (140, 30.0), (3, 0.0)])
def test_a_pod_drains_no_longer_than_it_has(pod_has: int, drain_s: float) -> None:
    """As in KServe's pods, which have 30 s, and where a notice of the cloud ends pods sooner: the drain ends before the engine dies."""
    leaving = terminating(pod("a", "10.0.0.1"))
    leaving["metadata"]["deletionGracePeriodSeconds"] = pod_has
    (member,) = members(leaving)
    assert member.drain_grace_s == drain_s


def test_more_pods_than_a_source_may_have_are_an_error_and_none_is_left_out() -> None:
    many = [pod(f"p{number}", f"10.{number // 65536}.{number // 256 % 256}.{number % 256}") for number in range(1001)]
    assert len(members(*many[:1000])) == 1000
    with pytest.raises(SourceError, match="the pods of app=vllm are 1001 backends, and a pool has at most 1000 of one source"):
        members(*many)


def test_a_pod_that_has_ended_is_no_backend() -> None:
    ended = terminating(pod("a", "10.0.0.1"))
    ended["status"]["phase"] = "Succeeded"
    assert members(ended) == []


def test_ports_are_numbers_names_or_the_only_one_and_each_is_a_backend() -> None:
    one = pod("a", "10.0.0.1", port=8001)
    assert [each.url for each in members(one)] == ["http://10.0.0.1:8001"]
    assert [each.url for each in members(one, ports=(9000, 9001))] == ["http://10.0.0.1:9000", "http://10.0.0.1:9001"]
    silent = pod("b", "fd00::1", port=None)
    assert [each.url for each in members(silent, fallback_port=8000)] == ["http://[fd00::1]:8000"]
    one["spec"]["containers"][1]["ports"][0]["name"] = "http"
    assert [each.url for each in members(one, ports=("http", "proxy", "metrics"))] == ["http://10.0.0.1:8001", "http://10.0.0.1:9000"]
    assert [each.url for each in members(one, silent, ports=("http",))] == ["http://10.0.0.1:8001"]


@pytest.mark.parametrize(("ports", "says"), [((), "declares exactly one port"), (("grpc",), "has the port grpc")])
def test_pods_without_the_port_are_an_error_that_says_so(ports: tuple[str, ...], says: str) -> None:
    with pytest.raises(SourceError, match=f"none of the 1 pods of app=vllm {says}; write the number of the engines' port as port"):
        members(pod("a", "10.0.0.1", port=None), ports=ports)


def test_kserves_pods_have_its_labels_and_the_certificate_of_its_service() -> None:
    selector = "app.kubernetes.io/name=llama,app.kubernetes.io/part-of=llminferenceservice,kserve.io/component=workload"
    assert kserve_selector("llama") == selector
    (member,) = members(pod("a", "10.0.0.1", port=None), scheme="https", host=kserve_host("llama", "engines"), fallback_port=KSERVE_PORT)
    assert (member.url, member.address) == ("https://llama-kserve-workload-svc.engines.svc:8000", "10.0.0.1")


async def test_pods_are_watched_by_their_labels_and_none_is_an_answer() -> None:
    async with kubernetes_api(pod("other", "10.0.0.9", app="else")) as api:
        source = source_of(api)
        assert await source.read() == []
        one = pod("a", "10.0.0.1")
        api.put(one)
        assert [each.address for each in await source.read()] == ["10.0.0.1"]
        api.put(terminating(one))
        assert [each.drain_grace_s for each in await source.read()] == [30.0]
        api.put(pod("a", "10.0.0.1", app="else"))
        assert await source.read() == []
        assert [asked["kind"] for asked in api.asked] == ["Pod", "Pod"]
        assert api.asked[0]["labelSelector"] == "app=vllm"
        await source.close()


async def test_a_bookmark_and_a_lost_connection_cost_no_second_list() -> None:
    async with kubernetes_api(pod("a", "10.0.0.1")) as api:
        source = source_of(api)
        await source.read()
        api.bookmark()
        await source.read()
        api.compact()
        api.cut()
        with pytest.raises(SourceError, match="cannot be read"):
            await source.read()
        api.put(pod("b", "10.0.0.2"))
        assert len(await source.read()) == 2
        assert api.lists == 1
        api.forbidden = True
        await source.close()
        with pytest.raises(SourceError, match=r'apiGroups \[""\], resources \["pods"\], verbs \["list", "watch"\]'):
            await source.read()
        await source.close()


@pytest.mark.parametrize(
    ("rule", "taken", "left_out"),
    [
        (LabelRule(), "1234", {}),
        (LabelRule("r2"), "134", {"tidegate/revision r1": 1}),
        (LabelRule("r2", labelled=True), "13", {"tidegate/revision r1": 1, "no tidegate/revision": 1}),
        (LabelRule("r2", "chat"), "14", {"tidegate/revision r1": 1, "tidegate/pool other": 1}),
        (LabelRule("r1", "other"), "", {"tidegate/pool chat": 3, "tidegate/revision r2": 1}),
    ],
)
async def test_labels_say_which_pods_are_of_the_pool(rule: LabelRule, taken: str, left_out: dict[str, int]) -> None:
    labels = [("chat", "r2"), ("chat", "r1"), ("other", "r2"), ("chat", "")]
    pods = [pod(f"p{n}", f"10.0.0.{n}", tidegate__pool=name, tidegate__revision=r) for n, (name, r) in enumerate(labels, 1)]
    pods.append(pod("p5", "10.0.0.5", ready=False, tidegate__pool="unready"))
    async with kubernetes_api(*pods) as api:
        source = source_of(api, rule)
        assert "".join(member.address[-1] for member in await source.read()) == taken
        assert source.left_out == left_out
        await source.close()


async def test_pods_that_are_all_left_out_are_an_empty_pool_and_no_error() -> None:
    async with kubernetes_api(pod("p1", "10.0.0.1", tidegate__revision="r1")) as api:
        source = source_of(api, LabelRule("r2"))
        assert await source.read() == []
        await source.close()


async def test_events_that_are_here_already_are_taken_in_one_read() -> None:
    async with kubernetes_api() as api:
        source = source_of(api)
        assert await source.read() == []
        for step in range(4):  # as a pod makes several events while it comes up
            for number in range(25):
                api.put(pod(f"p{number}", f"10.0.0.{number + 1}" if step else None, ready=step == 3))
        reads, found = 0, 0
        while found < 25:
            found, reads = len(await source.read()), reads + 1
        assert reads < 50, "one for each of 100 events would be followed for 20 s"
        await source.close()
