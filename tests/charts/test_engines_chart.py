"""The chart of the engines: helm and Kubernetes' schemas take it, and its Pods start what `tidegate engine render` renders."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from backends.launch.catalogue import load, names
from backends.launch.kubernetes import kubernetes
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, resolve
from backends.simengine import SimEngine, SimSettings
from gateway.config.settings import DrainSettings
from tests.charts.helm import CHARTS, Document, containers, example, examples, helm, of, pods, problems, refusal, rendered
from tests.e2e.test_engine_tls import demanding, terminated

pytestmark = pytest.mark.helm

INDEX = "$(POD_INDEX)"
WEIGHTS = {"from": "claim", "claim": "models"}


@pytest.mark.parametrize("name", examples("engines"))
def test_helm_finds_nothing_wrong_with_an_example(name: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / "engines"), "--values", str(example("engines", name)))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", examples("engines"))
def test_the_manifests_of_an_example_meet_the_schemas(name: str) -> None:
    documents = rendered("engines", name)
    found = problems(documents)
    if name in ("fleet-100-gpus", "air-gapped"):  # image volumes are younger than the oldest release
        found = [problem for problem in found if not problem.startswith("1.32 StatefulSet")]
    assert found == []


def launched(name: str, **given: Any) -> Launch:
    """What `tidegate engine render NAME --set …` resolves, with the host that a Pod has."""
    config = load(name)
    return resolve(config, manifest_for(config.engine, config.version), {"host": "0.0.0.0", "id": "ID", **given})


def container_of(documents: list[Document], pool: str = "chat") -> Document:
    found: Document = pods(documents)[f"StatefulSet/engines-{pool}"]["containers"][0]
    return found


def said(words: list[str]) -> list[Any]:
    """Words of a command line, with JSON as a value: members have no order."""
    return [json.loads(word) if word.startswith("{") else word for word in words]


def compared(documents: list[Document], launch: Launch, *, extra: dict[str, str] | None = None) -> None:
    """The container is the one that the launch configuration renders for Kubernetes, apart from what the chart adds."""
    ours = container_of(documents)
    theirs = next(yaml.safe_load_all(kubernetes(launch)))["spec"]["template"]["spec"]
    their = theirs["containers"][0]
    assert ours["image"] == their["image"]
    identity = f"engines-chat-{INDEX}"
    assert ours["command"] + said(ours["args"]) == their["command"] + said(
        [word.replace("@ID@", f"@{identity}@") for word in their["args"]]
    )
    added = {"HOME", "USER", "LOGNAME", "POD_INDEX"}
    environment = {e["name"]: e for e in ours["env"] if e["name"] not in added and not e["name"].startswith("PROBE_")}
    assert environment == {e["name"]: e for e in their["env"]} | {n: {"name": n, "value": v} for n, v in (extra or {}).items()}
    assert ours["ports"] == their["ports"]
    assert ours["resources"]["requests"] == their["resources"]["requests"]
    assert ours["resources"]["limits"] == their["resources"]["limits"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert ours[probe] == their[probe], probe
    for key in ("periodSeconds", "failureThreshold"):
        assert ours["startupProbe"][key] == their["startupProbe"][key]
    slept = ours["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert their["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", str(slept)]
    pod = pods(documents)["StatefulSet/engines-chat"]
    assert pod["terminationGracePeriodSeconds"] == theirs["terminationGracePeriodSeconds"]
    shm = {v["name"]: v for v in theirs["volumes"]}["shm"]
    assert shm in pod["volumes"]


@pytest.mark.parametrize("name", names())
def test_a_pod_starts_what_tidegate_engine_render_renders(name: str) -> None:
    # the configurations for CPUs name a model beside them, which no container has
    given = {} if str(load(name).parameters["model"]).startswith("/") else {"model": "/models/tiny"}
    weights = WEIGHTS | ({"path": "tiny"} if given else {})
    documents = rendered("engines", pools={"chat": {"launch": name, "weights": weights}})
    compared(documents, launched(name, **given))


@pytest.mark.parametrize(
    ("name", "parameters", "flags"),
    [
        ("vllm-8b", {"port": 8100, "grace_s": 300, "events_port": 6000}, {"max-num-seqs": 128, "max-num-queued-reqs": 1000000}),
        ("vllm-8b", {"replay_endpoint": "tcp://*:7000"}, {"quantization": False, "enable-prefix-caching": False}),
        ("vllm-8b", {}, {"seed": 7, "enforce-eager": True, "gpu-memory-utilization": 0.5}),
        ("vllm-8b", {}, {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 5}}),
        ("vllm-pd-prefill", {"side_channel_port": 5700}, {}),
        ("vllm-pd-prefill", {"side_channel_host": "10.0.0.9"}, {}),
        ("vllm-moe-ep", {"rank": 3, "leader": "engines-chat-0.engines-chat"}, {"max-num-seqs": 64}),
        ("sglang-8b", {"events_port": 5600}, {}),
        ("sglang-8b", {"events_port": 5656}, {}),
        ("sglang-8b", {}, {"schedule-policy": "lof", "lora-target-modules": ["q_proj", "k_proj"], "enable-lora": True}),
        ("sglang-moe-ep", {}, {"dp-size": 4}),
        ("sglang-pd-prefill", {"bootstrap_port": 9000}, {}),
    ],
)
def test_parameters_and_flags_mean_what_set_means(name: str, parameters: dict[str, Any], flags: dict[str, Any]) -> None:
    pool = {"launch": name, "weights": WEIGHTS, "parameters": parameters, "flags": flags}
    compared(rendered("engines", pools={"chat": pool}), launched(name, **parameters, **dict(sorted(flags.items()))))


def test_a_served_name_and_a_model_reach_the_engine() -> None:
    pool = {"launch": "vllm-8b", "servedName": "mine", "weights": {**WEIGHTS, "path": "own/model-1"}, "env": {"A": 1}}
    documents = rendered("engines", pools={"chat": pool})
    compared(documents, launched("vllm-8b", served_name="mine", model="/models/own/model-1"), extra={"A": "1"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "pools: is empty; name a pool of engines"),
        ({"pools": {"chat": {}}}, "pools.chat: launch is required"),
        (
            {"pools": {"chat": {"launch": "vlm-8b"}}},
            'pools.chat.launch: there is no launch configuration "vlm-8b"; there are sglang-70b-tp4',
        ),
        ({"pools": {"Chat": {"launch": "vllm-8b"}}}, "pools.Chat: a pool's name has at most 22 small letters"),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "flags": {"max-num-sqs": 1}}}},
            "pools.chat.flags: --max-num-sqs is no flag of vllm 0.33.0",
        ),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "flags": {"ssl-certfile": "x"}}}},
            "pools.chat.flags: --ssl-certfile: the chart writes it",
        ),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "flags": {"shutdown-timeout": 600}}}},
            "pools.chat.flags: --shutdown-timeout: use parameters.grace_s, which the rest of the chart follows",
        ),
        ({"pools": {"chat": {"launch": "vllm-8b", "flags": {"port": 9000}}}}, "pools.chat.flags: --port: use parameters.port"),
        ({"pools": {"chat": {"launch": "vllm-8b", "flags": {"host": "127.0.0.1"}}}}, "pools.chat.flags: --host: the chart sets it"),
        ({"pools": {"chat": {"launch": "vllm-8b", "flags": {"served-model-name": "m"}}}}, "--served-model-name: use servedName"),
        ({"pools": {"chat": {"launch": "sglang-8b", "flags": {"model-path": "/m"}}}}, "pools.chat.flags: --model-path: use weights.path"),
        ({"pools": {"chat": {"launch": "vllm-8b", "flags": {"api-key": "k"}}}}, "--api-key would stand in clear in the Pod"),
        ({"pools": {"chat": {"launch": "vllm-8b", "parameters": {"port": 70000}}}}, "pools.chat.parameters.port: is a port"),
        (
            {"pools": {"a-name-with-22-letters": {"launch": "vllm-8b"}}, "fullnameOverride": "x" * 30},
            "has 53 characters, and a StatefulSet's at most 52",
        ),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "adapters": {"claim": "a", "path": "/tmp"}}}},
            "pools.chat.adapters.path: /tmp is taken",
        ),
        ({"pools": {"chat": {"launch": "vllm-8b", "parameters": {"prot": 1}}}}, 'pools.chat.parameters: "prot" is no parameter of vllm-8b'),
        ({"pools": {"chat": {"launch": "vllm-8b", "parameters": {"host": "x"}}}}, "pools.chat.parameters.host: the chart sets it"),
        ({"pools": {"chat": {"launch": "vllm-8b", "role": "prefill"}}}, "pools.chat.group: is empty; a prefill pool names the group"),
        ({"pools": {"chat": {"launch": "vllm-8b", "role": "draft"}}}, "pools.chat.role: pools.chat.role must be one of"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "claim", "claim": ""}}}}, "pools.chat.weights.claim: is empty"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "objectStore"}}}}, "pools.chat.weights.source: is empty"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "oci"}}}}, "pools.chat.weights.reference: is empty"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "ftp"}}}}, "pools.chat.weights.from"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "nodeDisk"}}}}, "pools.chat.weights.folder: is empty"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"folder": "/mnt/../etc"}}}}, "pools.chat.weights.folder"),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "weights": {"from": "nodeDisk", "folder": "/mnt/models"}}}},
            "pools.chat.nodeSelector: is empty; not every node has the folder /mnt/models",
        ),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "nodes": {"bootDisk": {"image": "vllm-1"}}}}},
            "pools.chat.nodes.bootDisk.project: is empty; name the project of the disk image vllm-1",
        ),
        ({"pools": {"chat": {"launch": "vllm-8b", "nodes": {"bootDisk": {"image": "a" * 40}}}}}, "pools.chat.nodes.bootDisk.image"),
        ({"pools": {"chat": {"launch": "vllm-8b", "nodes": {"streaming": "amazon"}}}}, "pools.chat.nodes.streaming"),
        ({"pools": {"chat": {"launch": "vllm-8b", "weights": {"path": "../etc"}}}}, "pools.chat.weights.path"),
        ({"pools": {"chat": {"launch": "vllm-8b", "image": "vllm:latest"}}}, "pools.chat.image"),
        ({"pools": {"chat": {"launch": "vllm-8b", "env": {"HF_TOKEN": "hf_x"}}}}, "pools.chat.env"),
        ({"pools": {"chat": {"launch": "vllm-8b", "replicas": -1}}}, "pools.chat.replicas: Must be greater than or equal to 0"),
        ({"pools": {"chat": {"launch": "sglang-8b", "tls": {"secret": "s"}}}}, "pools.chat.tls.requireClient: sglang 0.5.23 cannot demand"),
        ({"pools": {"chat": {"launch": "vllm-8b", "tls": {"issuer": {"name": "ca"}}}}}, "pools.chat.tls.secret: is empty"),
        ({"pools": {"chat": {"launch": "vllm-8b"}}, "podSecurity": {"uid": 0}}, "podSecurity.uid: Must be greater than or equal to 1"),
        ({"pools": {"chat": {"launch": "vllm-8b", "digest": "sha256:1"}}}, "pools.chat.digest: Does not match pattern"),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "digest": f"sha256:{'0' * 64}", "weights": {"from": "none"}}}},
            "pools.chat.digest: the weights",
        ),
        ({"pools": {"chat": {"launch": "vllm-8b", "buffer": -1}}}, "pools.chat.buffer: Must be greater than or equal to 0"),
        (
            {"pools": {"chat": {"launch": "vllm-8b", "buffer": 1}}, "buffer": {"priorityClass": {"name": ""}}},
            "pools.chat.buffer: placeholders need a priority below that of engines",
        ),
        ({"pools": {"chat": {"launch": "vllm-8b"}}, "buffer": {"priorityClass": {"value": 5}}}, "buffer.priorityClass.value: Must be less"),
        (
            {"pools": {"chat": {"launch": "vllm-8b"}}, "metrics": {"serviceMonitor": {"enabled": True}}},
            "networkPolicy.prometheus: is empty, so that Prometheus cannot reach the engines",
        ),
        ({"pools": {"chat": {"launch": "vllm-cpu-test"}}}, "pools.chat.weights.path: is empty, and vllm-cpu-test names no absolute path"),
    ],
)
def test_the_chart_refuses(values: dict[str, Any], message: str) -> None:
    assert message in refusal("engines", **values)


@pytest.mark.req("R62")
def test_into_engines_come_the_gateway_their_peers_and_prometheus() -> None:
    documents = rendered("engines", "fleet-100-gpus")
    prefill = of(documents, "NetworkPolicy", "engines-long-prefill")["spec"]
    peers = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "engines", "tidegate/group": "long"}}}
    gateway, group, prometheus = prefill["ingress"]
    labels = {"app.kubernetes.io/name": "tidegate", "app.kubernetes.io/component": "gateway"}
    assert gateway == {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": labels}}]}
    assert group == {"from": [peers]}
    assert prometheus["ports"] == [{"port": "http", "protocol": "TCP"}]
    dns, out = prefill["egress"]
    assert ({port["port"] for port in dns["ports"]}, out) == ({53}, {"to": [peers]})
    small = of(documents, "NetworkPolicy", "engines-small")["spec"]
    assert [rule.get("to", [{}])[0].get("ipBlock") for rule in small["egress"]] == [None, {"cidr": "10.30.0.0/24"}]
    gateways = [d for d in rendered("tidegate", "fleet-100-gpus") if d["kind"] == "StatefulSet"]
    assert labels.items() <= gateways[0]["spec"]["template"]["metadata"]["labels"].items(), "the other chart's Pods have these labels"


def test_the_gateways_chart_names_the_pods_of_this_one() -> None:
    """In every example: the same Services, ports and numbers of replicas on both sides."""
    for name in examples("engines"):
        engines = {d["metadata"]["name"]: d for d in rendered("engines", name) if d["kind"] == "StatefulSet"}
        services = {d["metadata"]["name"]: d for d in rendered("engines", name) if d["kind"] == "Service"}
        settings = yaml.safe_load(of(rendered("tidegate", name), "ConfigMap", "tidegate")["data"]["tidegate.yaml"])
        seen: dict[str, int] = {}
        found = set()
        for pool in settings["pools"]:
            if "discover" in pool:
                discovered = pool["discover"]["kubernetes"]
                service = services[discovered["service"]]
                assert discovered["port"] in [port["name"] for port in service["spec"]["ports"]]
                tls = any(v["name"] == "tls" for v in engines[discovered["service"]]["spec"]["template"]["spec"]["volumes"])
                assert pool["discover"].get("scheme", "http") == ("https" if tls else "http")
                ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
                events = {"kv_events": ports["kv-events"], "kv_replay": ports["kv-replay"]}
                assert pool["discover"].get("ports", events) == events
                found.add(discovered["service"])
            for backend in pool.get("backends", []):
                host, port = backend["url"].partition("://")[2].rsplit(":", 1)
                pod, service, namespace, _ = host.split(".")
                assert (namespace, pod) == ("llm", f"{service}-{seen.get(service, 0)}")
                seen[service] = seen.get(service, 0) + 1
                ports = {p["name"]: p["port"] for p in services[service]["spec"]["ports"]}
                assert int(port) == ports["http"], (name, service)
                if "kv_events" in backend:
                    assert backend["kv_events"] == {
                        "endpoint": f"tcp://{host}:{ports['kv-events']}",
                        "replay": f"tcp://{host}:{ports['kv-replay']}",
                    }
                container = engines[service]["spec"]["template"]["spec"]["containers"][0]
                assert container["args"][container["args"].index("--served-model-name") + 1] == pool["model"], (name, service)
                tls = any(v["name"] == "tls" for v in engines[service]["spec"]["template"]["spec"]["volumes"])
                assert backend["url"].startswith("https:") is tls, (name, service)
        named = {service: document["spec"].get("replicas") for service, document in engines.items() if service not in found}
        assert seen == named, name
        scaled = {d["metadata"]["name"] for d in rendered("engines", name) if d["kind"] == "ScaledObject"}
        assert scaled <= found, "a name that does not run counts as an engine that is down"


def test_weights_come_from_a_claim_a_store_or_a_registry() -> None:
    documents = pods(rendered("engines", "fleet-100-gpus"))
    large, small, long = (documents[f"StatefulSet/engines-{pool}"] for pool in ("large", "small", "long-decode"))
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in large["volumes"]
    init = small["initContainers"][0]
    assert init["args"][-2:] == ["weights:models/llama-3.1-8b-instruct", "/models/llama-3.1-8b-instruct"]
    assert init["envFrom"] == [{"secretRef": {"name": "weight-store"}}]
    assert small["containers"][0]["args"][1] == "/models/llama-3.1-8b-instruct"
    reference = "registry.example.com/models/llama-3.1-8b-instruct:1"
    assert {"name": "models", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}} in long["volumes"]
    assert {"name": "models", "mountPath": "/models/llama-3.1-8b-instruct", "readOnly": True} in long["containers"][0]["volumeMounts"]


def test_the_clusters_dns_can_be_named_where_it_is_another() -> None:
    other = [{"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": [{"port": 53, "protocol": "UDP"}]}]
    documents = rendered("engines", pools={"chat": {"launch": "vllm-8b"}}, networkPolicy={"dns": other})
    assert of(documents, "NetworkPolicy", "engines-chat")["spec"]["egress"] == other
    assert problems(documents) == []


@pytest.mark.parametrize("name", sorted(set(examples("engines")) & set(examples("tidegate"))))
def test_an_engine_that_leaves_ends_no_answer_before_the_gateway_would(name: str) -> None:
    settings = yaml.safe_load(of(rendered("tidegate", name), "ConfigMap", "tidegate")["data"]["tidegate.yaml"])
    grace_s = settings.get("drain", {}).get("grace_s", DrainSettings().grace_s)
    for service, pod in pods(rendered("engines", name)).items():
        if service.startswith("StatefulSet/"):
            assert pod["terminationGracePeriodSeconds"] > grace_s, service


@pytest.mark.parametrize("chart", ["engines", "tidegate"])
def test_without_a_way_out_every_image_is_of_the_own_registry(chart: str) -> None:
    made = pods(rendered(chart, "air-gapped")).values()
    images = {container["image"] for pod in made for container in containers(pod)}
    images |= {volume["image"]["reference"] for pod in made for volume in pod["volumes"] if "image" in volume}
    assert images
    assert all(re.fullmatch(r"registry\.example\.internal/\S+@sha256:[0-9a-f]{64}", image) for image in images), images


NODE_DISK = {"from": "nodeDisk", "folder": "/mnt/disks/gke-secondary-disks/gke-weights-1-disk", "path": "tide", "size": "30Gi"}


def test_weights_of_a_nodes_disk_are_read_through_a_volume_of_the_cluster() -> None:
    pool = {"launch": "vllm-8b", "weights": NODE_DISK, "digest": DIGEST, "nodeSelector": {"cloud.google.com/gke-nodepool": "llm"}}
    documents = rendered("engines", pools={"chat": pool})
    pod = pods(documents)["StatefulSet/engines-chat"]
    (claim,) = (volume["persistentVolumeClaim"] for volume in pod["volumes"] if volume["name"] == "models")
    assert claim["readOnly"] is True
    wants = of(documents, "PersistentVolumeClaim")
    gives = of(documents, "PersistentVolume")
    assert wants["metadata"]["name"] == claim["claimName"]
    assert wants["spec"]["volumeName"] == gives["metadata"]["name"] == f"llm-{claim['claimName']}"
    assert gives["spec"]["claimRef"] == {"namespace": "llm", "name": claim["claimName"]}
    assert gives["spec"]["hostPath"] == {"path": NODE_DISK["folder"], "type": "Directory"}
    assert wants["spec"]["accessModes"] == gives["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert gives["spec"]["persistentVolumeReclaimPolicy"] == "Retain", "the disk is not the chart's"
    for container in (*pod["initContainers"], *pod["containers"]):
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"], container["name"]
    assert pod["containers"][0]["args"][1] == "/models/tide"
    assert problems(documents) == []


def test_another_folder_of_a_nodes_disk_is_another_volume() -> None:
    """What a PersistentVolume consists of cannot be changed, and a claim cannot shrink: an upgrade that tried would fail."""
    names = set()
    for change in ({}, {"folder": "/mnt/disks/gke-secondary-disks/gke-weights-2-disk"}, {"size": "20Gi"}):
        pool = {"launch": "vllm-8b", "weights": NODE_DISK | change, "nodeSelector": {"disk": "fast"}}
        documents = rendered("engines", pools={"chat": pool})
        names.add((of(documents, "PersistentVolume")["metadata"]["name"], of(documents, "PersistentVolumeClaim")["metadata"]["name"]))
    assert len({volume for volume, _ in names}) == len({claim for _, claim in names}) == 3


def test_engines_and_placeholders_go_to_nodes_that_start_engines_sooner() -> None:
    nodes = {"bootDisk": {"image": "vllm-1", "project": "llm-fleet"}, "streaming": "google"}
    pool = {"launch": "vllm-8b", "buffer": 1, "nodes": nodes, "nodeSelector": {"disk": "fast"}}
    azure = {"launch": "vllm-8b", "nodes": {"streaming": "azure"}}
    documents = rendered("engines", pools={"chat": pool, "other": azure, "anywhere": {"launch": "vllm-8b"}})
    chosen = {name: pod.get("nodeSelector") for name, pod in pods(documents).items()}
    wanted = {
        "disk": "fast",
        "cloud.google.com.node-restriction.kubernetes.io/gke-secondary-boot-disk-vllm-1": "CONTAINER_IMAGE_CACHE.llm-fleet",
        "cloud.google.com/gke-image-streaming": "true",
    }
    assert chosen == {
        "StatefulSet/engines-chat": wanted,
        "Deployment/engines-chat-buffer": wanted,
        "StatefulSet/engines-other": {"kubernetes.azure.com/artifactstreaming-enabled": "true"},
        "StatefulSet/engines-anywhere": None,
    }
    assert problems(documents) == []


def test_adapters_lie_where_the_gateway_has_them_loaded_from() -> None:
    pod = pods(rendered("engines", "eight-gpu-node"))["StatefulSet/engines-chat"]
    assert {"name": "adapters", "mountPath": "/adapters", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "adapters", "persistentVolumeClaim": {"claimName": "adapters", "readOnly": True}} in pod["volumes"]


def test_an_engine_with_tls_demands_a_certificate_and_its_probes_have_one() -> None:
    container = container_of(rendered("engines", "fleet-100-gpus"), "large")
    args = container["args"]
    for flag, value in (("certfile", "tls.crt"), ("keyfile", "tls.key"), ("ca-certs", "ca.crt")):
        assert args[args.index(f"--ssl-{flag}") + 1] == f"/etc/tidegate-tls/{value}"
    assert args[args.index("--ssl-cert-reqs") + 1] == "2"
    assert "--enable-ssl-refresh" in args
    assert container["readinessProbe"]["exec"]["command"] == ["python3", "/etc/tidegate-probe/probe.py", "health"]
    manifest = manifest_for("vllm", "0.33.0")
    assert {a for a in args if a.startswith("--")} <= set(manifest.flags)


DIGEST = "sha256:8179d8b3afcdd6b966b756a106d1fb604395027ecd1037cf53f5c20fc3fd04ea"


@pytest.mark.parametrize("name", ["vllm-8b", "sglang-8b"])
def test_a_pinned_engine_serves_the_name_that_proves_its_digest(name: str) -> None:
    documents = rendered("engines", pools={"chat": {"launch": name, "weights": WEIGHTS, "digest": DIGEST}})
    compared(documents, launched(name, digest=DIGEST))
    assert any(word.endswith("@sha256-8179d8b3afcd") for word in container_of(documents)["args"])
    (probed,) = [e["value"] for e in container_of(documents)["env"] if e["name"] == "PROBE_MODEL"]
    assert probed in container_of(documents)["args"], "the warm-up asks for a name that is served"


@pytest.mark.parametrize("source", ["claim", "objectStore", "oci"])
def test_weights_are_checked_before_their_engine_starts(source: str) -> None:
    weights = {"from": source, "claim": "models", "source": "s3:weights/tide", "reference": "registry.example.com/tide:1", "path": "tide"}
    documents = rendered("engines", pools={"chat": {"launch": "vllm-8b", "weights": weights, "digest": DIGEST}})
    assert [p for p in problems(documents) if not p.startswith("1.32 StatefulSet" if source == "oci" else "-")] == []
    pod = pods(documents)["StatefulSet/engines-chat"]
    *before, check = pod["initContainers"]
    assert [container["name"] for container in before] == (["weights"] if source == "objectStore" else []), (
        "the copy is there when it is read"
    )
    assert check["command"] + check["args"] == ["tidegate", "model", "digest", "/models/tide", "--expect", DIGEST]
    assert check["image"] == "tidegate:0.1.0"
    models = next(mount for mount in check["volumeMounts"] if mount["name"] == "models")
    assert models == {"name": "models", "mountPath": "/models/tide" if source == "oci" else "/models", "readOnly": True}


def test_the_check_of_a_digest_ends_with_an_error_on_other_weights(tmp_path: Path) -> None:
    """The command of the container, on a folder with one weight."""
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    program = Path(sys.executable).with_name("tidegate")
    found = subprocess.run([program, "model", "digest", tmp_path], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    for digest, code in ((found, 0), (DIGEST, 1)):
        pool = {"launch": "vllm-8b", "weights": {**WEIGHTS, "path": "tide"}, "digest": digest}
        check = pods(rendered("engines", pools={"chat": pool}))["StatefulSet/engines-chat"]["initContainers"][0]
        words = [str(tmp_path) if word == "/models/tide" else word for word in check["args"]]
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done.stderr


def test_placeholders_keep_room_for_an_engine_and_give_way_to_it() -> None:
    documents = rendered("engines", "fleet-100-gpus")
    placeholder = pods(documents)["Deployment/engines-small-buffer"]
    engine = pods(documents)["StatefulSet/engines-small"]
    assert placeholder["containers"][0]["resources"] == engine["containers"][0]["resources"]
    assert placeholder["tolerations"] == engine["tolerations"]
    assert placeholder["terminationGracePeriodSeconds"] == 0
    made = of(documents, "PriorityClass")
    assert placeholder["priorityClassName"] == made["metadata"]["name"]
    assert (made["value"], made["globalDefault"], made["preemptionPolicy"]) == (-10, False, "Never")
    policy = of(documents, "NetworkPolicy", "engines-small-buffer")["spec"]
    assert not policy.keys() & {"ingress", "egress"}, "nothing goes in or out"
    labels = of(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    for service in [d for d in documents if d["kind"] == "Service"]:
        assert not service["spec"]["selector"].items() <= labels.items(), "no request reaches a placeholder"


def test_prometheus_scrapes_engines_over_tls_where_they_have_it() -> None:
    documents = rendered("engines", "fleet-100-gpus")
    monitors = {d["metadata"]["name"]: d["spec"] for d in documents if d["kind"] == "ServiceMonitor"}
    services = {d["metadata"]["name"]: d["metadata"]["labels"] for d in documents if d["kind"] == "Service"}
    assert monitors.keys() == services.keys()
    for name, monitor in monitors.items():
        selected = [service for service, labels in services.items() if monitor["selector"]["matchLabels"].items() <= labels.items()]
        assert selected == [name]
    (large,), (prefill,) = monitors["engines-large"]["endpoints"], monitors["engines-long-prefill"]["endpoints"]
    assert (large["port"], large["path"], large["scheme"]) == ("http", "/metrics", "https")
    assert large["tlsConfig"]["serverName"] == "engines-large.llm.svc"
    assert large["tlsConfig"]["serverName"] in of(documents, "Certificate", "engines-large")["spec"]["dnsNames"]
    assert large["tlsConfig"]["keySecret"] == {"name": "engines-large", "key": "tls.key"}
    assert "cert" not in prefill["tlsConfig"], "SGLang demands no client's certificate"
    plain = rendered(
        "engines", "eight-gpu-node", metrics={"serviceMonitor": {"enabled": True}}, networkPolicy={"prometheus": [{"podSelector": {}}]}
    )
    assert "tlsConfig" not in of(plain, "ServiceMonitor")["spec"]["endpoints"][0]
    assert problems(plain) == []


def probe(mode: str, port: int, **environment: str) -> subprocess.CompletedProcess[str]:
    script = CHARTS / "engines" / "files" / "probe.py"
    whole = {"PATH": os.environ["PATH"], "PROBE_PORT": str(port), "PROBE_MODEL": "tiny", **environment}
    return subprocess.run([sys.executable, script, mode], env=whole, capture_output=True, text=True, timeout=60, check=False)


async def test_the_probe_warms_an_engine_up_once_in_each_life_of_its_container(tmp_path: Path) -> None:
    done = tmp_path / "warm"
    async with SimEngine(SimSettings(models=("tiny",), speed=1000)) as engine:
        port = int(engine.url.rpartition(":")[2])
        asked = {"PROBE_REQUESTS": "3", "PROBE_TOKENS": "2", "PROBE_DONE": str(done)}
        first = await asyncio.to_thread(probe, "warm", port, **asked)
        assert (first.returncode, first.stderr) == (0, "")
        again = await asyncio.to_thread(probe, "warm", port, PROBE_MODEL="other", **asked)
        assert again.returncode == 0, "an engine that was warmed up is not asked again"
        # the folder is the Pod's: it outlives a container that was killed for its memory
        restarted = asked | {"PROBE_PID": str(os.getpid())}
        refused = await asyncio.to_thread(probe, "warm", port, PROBE_MODEL="other", **restarted)
        assert "the engine answers 404 to the warm-up" in refused.stderr
        assert (await asyncio.to_thread(probe, "warm", port, **restarted)).returncode == 0
        assert (await asyncio.to_thread(probe, "warm", port, PROBE_MODEL="other", **restarted)).returncode == 0
        assert (await asyncio.to_thread(probe, "health", port)).returncode == 0
    gone = await asyncio.to_thread(probe, "health", port)
    assert gone.returncode == 1
    assert "the engine does not answer" in gone.stderr


async def test_the_probe_shows_the_key_that_vllm_takes_from_its_environment(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("tiny",), speed=1000, api_key="k-1")) as engine:
        port = int(engine.url.rpartition(":")[2])
        asked = {"PROBE_REQUESTS": "1", "PROBE_DONE": str(tmp_path / "warm")}
        refused = await asyncio.to_thread(probe, "warm", port, **asked)
        assert "the engine answers 401 to the warm-up" in refused.stderr
        assert (await asyncio.to_thread(probe, "warm", port, VLLM_API_KEY="k-1", **asked)).returncode == 0


async def test_the_probe_shows_an_engine_with_tls_its_own_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("engines-chat.llm.svc")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    issued.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    for pem in issued.cert_chain_pems:
        pem.write_to_path(str(tmp_path / "tls.crt"), append=True)
    async with SimEngine(SimSettings(models=("tiny",), speed=1000)) as engine, terminated(engine, demanding(authority, authority)) as front:
        shown = {"PROBE_TLS": str(tmp_path), "PROBE_REQUESTS": "1", "PROBE_DONE": str(tmp_path / "warm")}
        done = await asyncio.to_thread(probe, "warm", front.port, **shown)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "warm").exists()
        assert sum(front.shown.values()) == 2, "health, and one request"
        plain = await asyncio.to_thread(probe, "health", front.port)
        assert plain.returncode == 1
        assert sum(front.shown.values()) == 2
