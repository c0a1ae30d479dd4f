"""Labels by which pools of the gateway find their own engines: what the chart of the engines writes, and the rights to read it."""

import pytest
import yaml

from backends.discovery.kubernetes.watch import POOL_LABEL, REVISION_LABEL, ROLE_LABEL
from tests.charts.helm import Document, examples, of, problems, refusal, rendered

pytestmark = pytest.mark.helm

WEIGHTS = {"from": "claim", "claim": "models"}
API_SERVER = {"networkPolicy": {"apiServer": [{"cidr": "10.96.0.1/32", "port": 443}]}}


def labels_of(document: Document) -> dict[str, str]:
    found: dict[str, str] = document["spec"]["template"]["metadata"]["labels"]
    return found


@pytest.mark.parametrize("revision", ["r2", "2", "2024-06_b.1", "true"])
def test_pods_have_the_labels_of_pool_role_and_revision(revision: str) -> None:
    pools = {"chat": {"launch": "vllm-8b", "weights": WEIGHTS, "revision": revision}, "plain": {"launch": "vllm-8b", "weights": WEIGHTS}}
    documents = rendered("engines", pools=pools)
    assert problems(documents) == []
    chat, plain = (of(documents, "StatefulSet", f"engines-{name}") for name in pools)
    assert [labels_of(chat)[label] for label in (POOL_LABEL, ROLE_LABEL, REVISION_LABEL)] == ["chat", "both", revision]
    assert REVISION_LABEL not in labels_of(plain)
    assert REVISION_LABEL not in chat["spec"]["selector"]["matchLabels"], "a StatefulSet keeps its selector for ever"
    services = [d for d in documents if d["kind"] == "Service"]
    assert services
    for service in services:
        assert REVISION_LABEL not in service["spec"]["selector"]
        assert REVISION_LABEL not in service["metadata"]["labels"], "during an update its endpoints are of two revisions"


@pytest.mark.parametrize("revision", ["a b", "-r2", "sha256:ab", "r" * 64, 2])
def test_a_revision_that_is_no_value_of_a_label_is_refused(revision: str | int) -> None:
    pools = {"chat": {"launch": "vllm-8b", "weights": WEIGHTS, "revision": revision}}
    assert "revision" in refusal("engines", pools=pools)


@pytest.mark.parametrize("labels", [{"revision": True}, {"pool": "chat"}, None])
def test_a_service_whose_pods_are_chosen_by_labels_needs_the_right_to_read_pods(labels: Document | None) -> None:
    source = {"service": "vllm"} | ({} if labels is None else {"labels": labels})
    pool = {"name": "chat", "model": "tiny", "discover": {"kubernetes": source}}
    documents = rendered("tidegate", "trial", **API_SERVER, settings={"pools": [pool]}, engines=[])
    assert problems(documents) == []
    verbs = ["list", "watch"]
    slices = {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs}
    pods = {"apiGroups": [""], "resources": ["pods"], "verbs": verbs}
    assert of(documents, "Role")["rules"] == ([slices] if labels is None else [slices, pods])


def test_in_every_example_the_gateways_pool_has_the_revision_of_the_engines_that_it_finds() -> None:
    found = 0
    for name in sorted({*examples("engines")} & {*examples("tidegate")}):
        engines = {d["metadata"]["name"]: labels_of(d) for d in rendered("engines", name) if d["kind"] == "StatefulSet"}
        settings = yaml.safe_load(of(rendered("tidegate", name), "ConfigMap", "tidegate")["data"]["tidegate.yaml"])
        for pool in settings["pools"]:
            source = pool.get("discover", {}).get("kubernetes", {})
            if source.get("labels", {}).get("revision"):
                assert engines[source["service"]][REVISION_LABEL] == pool["revision"], name
                found += 1
    assert found
