"""Security defaults of both charts, one test each, over every Pod of every example and of what can be switched on."""

import re
from typing import Any

import pytest
import yaml

from tests.charts.helm import Document, containers, examples, pods, problems, rendered

pytestmark = pytest.mark.helm

CHARTS_WITH_PODS = [(chart, name) for chart in ("tidegate", "engines") for name in examples(chart)]
BUNDLED: dict[str, Any] = {
    "stores": {
        "bundled": {store: {"enabled": True, "password": {"name": "trial", "key": "password"}} for store in ("postgres", "valkey")},
    },
    "secrets": {"pepper": {"name": "tidegate", "key": "pepper"}},
}


@pytest.fixture(scope="module", params=[*CHARTS_WITH_PODS, ("tidegate", "bundled")], ids="-".join)
def documents(request: pytest.FixtureRequest) -> list[Document]:
    chart, name = request.param
    return rendered(chart, "trial", **BUNDLED) if name == "bundled" else rendered(chart, name)


@pytest.mark.req("R62")
def test_every_pod_runs_as_another_user_than_root(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] > 0, name
        assert security["runAsGroup"] > 0, name
        for container in containers(pod):
            assert container["securityContext"].get("runAsUser", 1) > 0, name
            assert container["securityContext"].get("runAsNonRoot", True) is True, name


@pytest.mark.req("R62")
def test_the_root_of_every_container_is_read_only(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, (name, container["name"])


def test_no_container_gains_privileges_or_keeps_capabilities(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, (name, container["name"])
            assert security.get("privileged", False) is False, (name, container["name"])
            assert security["capabilities"] == {"drop": ["ALL"]}, (name, container["name"])


def test_every_pod_is_under_the_runtimes_seccomp_profile(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name


def discovers(documents: list[Document]) -> bool:
    """Whether a pool of these settings finds its engines in the cluster."""
    settings = [d["data"]["tidegate.yaml"] for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"] == "tidegate"]
    return any("kubernetes" in pool.get("discover", {}) for pool in yaml.safe_load(settings[0])["pools"]) if settings else False


def test_no_pod_has_a_token_of_the_api_server(documents: list[Document]) -> None:
    """But the gateway's container where a pool discovers its engines, and no sidecar beside it."""
    holders = []
    for name, pod in pods(documents).items():
        assert pod["automountServiceAccountToken"] is False, name
        mounted = {
            v["name"] for v in pod["volumes"] for source in v.get("projected", {}).get("sources", []) if "serviceAccountToken" in source
        }
        holders += [(name, c["name"]) for c in containers(pod) for m in c.get("volumeMounts", []) if m["name"] in mounted]
    assert holders == ([("StatefulSet/tidegate", "gateway")] if discovers(documents) else [])


def test_discovery_may_read_what_pools_name_and_nothing_else(documents: list[Document]) -> None:
    assert not {d["kind"] for d in documents} & {"ClusterRole", "ClusterRoleBinding"}
    roles = [d for d in documents if d["kind"] == "Role"]
    assert bool(roles) is discovers(documents)
    for role in roles:
        for rule in role["rules"]:
            assert rule.keys() == {"apiGroups", "resources", "verbs"}
            assert rule["verbs"] == ["list", "watch"]
            assert set(rule["resources"]) <= {"endpointslices", "pods", "inferencepools"}
    for binding in [d for d in documents if d["kind"] == "RoleBinding"]:
        assert binding["metadata"]["namespace"] in [r["metadata"]["namespace"] for r in roles]
        assert [(s["kind"], s["name"], s["namespace"]) for s in binding["subjects"]] == [("ServiceAccount", "tidegate", "llm")]


def test_a_gateway_learns_its_zone_from_the_label_of_its_pod() -> None:
    for given, source in ((True, {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}), (False, None)):
        documents = rendered("tidegate", "trial", zoneFromPod=given)
        (container,) = pods(documents)["StatefulSet/tidegate"]["containers"]
        found = [entry["valueFrom"] for entry in container["env"] if entry["name"] == "TIDEGATE__ROUTING__REGION"]
        assert found == ([] if source is None else [source])
        assert problems(documents) == []


def test_no_pod_shares_its_node(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            assert pod.get(key, False) is False, (name, key)
        assert not [v for v in pod["volumes"] if "hostPath" in v], name
        for container in containers(pod):
            assert not [port for port in container.get("ports", []) if "hostPort" in port], name


def test_services_add_nothing_to_environments(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        assert pod["enableServiceLinks"] is False, name


def test_every_container_has_requests_and_a_bound_on_memory(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for container in containers(pod):
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), (name, container["name"])
            assert "memory" in container["resources"]["limits"], (name, container["name"])


def test_every_scratch_folder_is_bounded(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for volume in pod["volumes"]:
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], (name, volume["name"])


def test_every_image_is_named_by_a_version(documents: list[Document]) -> None:
    for name, pod in pods(documents).items():
        for container in containers(pod):
            assert re.search(r"(:[\w][\w.-]*|@sha256:[0-9a-f]{64})$", container["image"]), (name, container["image"])
            assert not container["image"].endswith(":latest"), (name, container["image"])


@pytest.mark.req("R62")
def test_secrets_exist_before_and_are_never_written_out(documents: list[Document]) -> None:
    assert "Secret" not in {d["kind"] for d in documents}
    for name, pod in pods(documents).items():
        for container in containers(pod):
            for variable in container.get("env", []):
                if re.search("PASSWORD|TOKEN$|SECRET|PEPPER|_KEY$", variable["name"]):
                    assert "secretKeyRef" in variable.get("valueFrom", {}), (name, variable)
        for volume in pod["volumes"]:
            mode = volume.get("secret", volume.get("projected", {})).get("defaultMode", 0o440)
            assert mode == 0o440, (name, volume["name"])


@pytest.mark.req("R62")
def test_every_pod_is_under_a_policy_of_the_network(documents: list[Document]) -> None:
    policies = [d["spec"] for d in documents if d["kind"] == "NetworkPolicy"]
    for document in documents:
        if document["kind"] in ("StatefulSet", "Deployment", "Job"):
            labels = document["spec"]["template"]["metadata"]["labels"]
            own = [p for p in policies if p["podSelector"]["matchLabels"].items() <= labels.items()]
            assert own, document["metadata"]["name"]
            assert all(p["policyTypes"] == ["Ingress", "Egress"] for p in own), document["metadata"]["name"]


@pytest.mark.req("R62")
def test_no_pod_may_reach_everything(documents: list[Document]) -> None:
    for document in documents:
        if document["kind"] == "NetworkPolicy":
            for rule in document["spec"].get("egress", []):
                assert rule.get("to"), (document["metadata"]["name"], yaml.safe_dump(rule))


def test_every_selector_finds_its_own_pods_and_no_others(documents: list[Document]) -> None:
    made = [d for d in documents if d["kind"] in ("StatefulSet", "Deployment")]
    for document in made:
        selector = document["spec"]["selector"]["matchLabels"].items()
        found = [d["metadata"]["name"] for d in made if selector <= d["spec"]["template"]["metadata"]["labels"].items()]
        assert found == [document["metadata"]["name"]]
