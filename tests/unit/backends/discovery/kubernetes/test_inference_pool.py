import asyncio
import random
from contextlib import suppress

import pytest

from backends.discovery.kubernetes.inference_pool import InferencePoolSource, PoolTarget, target_of
from backends.discovery.kubernetes.pods import PodQuery
from backends.discovery.kubernetes.watch import ClusterAccess, LabelRule
from domain.membership import SourceError
from tests.kubernetes_api import KubernetesApi, inference_pool, kubernetes_api, pod, terminating


def source_of(api: KubernetesApi, rule: LabelRule | None = None) -> InferencePoolSource:
    query = PodQuery("chat", "engines", "", grace_s=30.0, rule=rule or LabelRule())
    return InferencePoolSource(query, "llama", ClusterAccess(api.url), lambda: 0.0, random.Random(1))


async def urls(source: InferencePoolSource) -> list[str]:
    return [each.url.removeprefix("http://") for each in await source.read()]


async def refused(source: InferencePoolSource) -> str:
    with pytest.raises(SourceError) as raised:
        await source.read()
    return str(raised.value)


async def read_again(source: InferencePoolSource) -> list[str]:
    with suppress(SourceError):
        return await urls(source)
    return []


def test_a_pool_of_another_version_or_beyond_the_bounds_is_said() -> None:
    assert target_of(inference_pool("llama", 8000, 8001, b="2", a="1")) == PoolTarget("a=1,b=2", (8000, 8001))
    alpha = {"spec": {"selector": {"app": "vllm"}, "targetPortNumber": 8000}}
    assert "has no spec.selector.matchLabels and spec.targetPorts as version v1" in target_of(alpha).trouble
    assert "has 1 labels and 9 ports" in target_of(inference_pool("llama", *range(8000, 8009))).trouble


async def test_its_pods_at_its_ports_are_backends_and_its_changes_are_followed() -> None:
    first, second = pod("a", "10.0.0.1"), pod("b", "10.0.0.2", app="sglang")
    async with kubernetes_api(inference_pool("llama"), inference_pool("other", 1), first, second) as api:
        source = source_of(api)
        assert await urls(source) == ["10.0.0.1:8000"]
        api.put(pod("c", "10.0.0.3"))
        assert await urls(source) == ["10.0.0.1:8000", "10.0.0.3:8000"]
        api.put(terminating(first))
        assert [each.drain_grace_s for each in await source.read()] == [30.0, None]
        api.put(inference_pool("llama", 8000, 8001, app="sglang"))
        assert await urls(source) == ["10.0.0.2:8000", "10.0.0.2:8001"]
        assert [(asked["kind"], asked.get("fieldSelector")) for asked in api.asked if "watch" not in asked] == [
            ("InferencePool", "metadata.name=llama"),
            ("Pod", None),
            ("Pod", None),
        ]
        await source.close()


async def test_pods_of_another_revision_are_left_out_of_what_the_pool_selects() -> None:
    pods = [pod(name, f"10.0.0.{number}", tidegate__revision=name) for number, name in enumerate(("r1", "r2"), 1)]
    async with kubernetes_api(inference_pool("llama"), *pods) as api:
        source = source_of(api, LabelRule("r2"))
        assert source.left_out == {}
        assert await urls(source) == ["10.0.0.2:8000"]
        assert source.left_out == {"tidegate/revision r1": 1}
        await source.close()


async def test_a_change_that_selects_the_same_lists_nothing_anew() -> None:
    async with kubernetes_api(inference_pool("llama"), pod("a", "10.0.0.1")) as api:
        source = source_of(api)
        await source.read()
        api.put(inference_pool("llama"))
        assert await urls(source) == ["10.0.0.1:8000"]
        api.put(pod("b", "10.0.0.2"))
        assert len(await source.read()) == 2
        assert api.lists == 2
        await source.close()


async def test_no_pool_is_no_answer_and_its_pods_are_followed_once_it_is_there() -> None:
    async with kubernetes_api(pod("a", "10.0.0.1")) as api:
        source = source_of(api)
        with pytest.raises(SourceError, match="there is no InferencePool engines/llama; create it, or mend"):
            await source.read()
        api.put(inference_pool("llama"))
        assert await urls(source) == ["10.0.0.1:8000"]
        await source.close()


async def test_while_the_pool_cannot_be_read_its_pods_are_followed() -> None:
    async with kubernetes_api(inference_pool("llama"), pod("a", "10.0.0.1")) as api:
        source = source_of(api)
        await source.read()
        api.forbidden_kinds.add("InferencePool")
        api.cut()
        said = [await refused(source), await refused(source)]
        assert any('resources ["inferencepools"]' in each for each in said)
        api.put(pod("b", "10.0.0.2"))
        while len(found := await read_again(source)) < 2:
            await asyncio.sleep(0)
        assert found == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert source.every_s > 0.2
        api.forbidden_kinds.clear()
        api.delete("llama", "InferencePool")
        with pytest.raises(SourceError, match="there is no InferencePool"):
            for _ in range(4):
                await source.read()
        await source.close()


async def test_a_cluster_without_the_crd_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kubernetes_api.PATHS", {})
    async with kubernetes_api() as api:
        with pytest.raises(SourceError, match=r"knows no inferencepools\.inference\.networking\.k8s\.io/v1 \(404\); install the CRDs"):
            await source_of(api).read()
