"""The chart of the gateway: helm takes it and its examples, Kubernetes' schemas take what it renders, and it refuses what cannot work."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from gateway.config.picker import PickerSettings, PickerTls
from tests.charts.helm import CHARTS, Document, example, examples, helm, of, pods, problems, refusal, rendered

pytestmark = pytest.mark.helm

EXAMPLES = examples("tidegate")
SECRETS = {"pepper": {"name": "tidegate"}, "adminToken": {"name": "tidegate"}}
POLICY = {"files": {"default.yaml": 'tenant: "*"\nmodels: [{name: chat, pool: chat}]\n'}}
POOLS = {"pools": [{"name": "chat", "model": "tiny", "backends": [{"id": "a", "url": "http://engine:8000"}]}]}
LEAST: dict[str, Any] = {"replicas": 1, "secrets": SECRETS, "policies": POLICY, "settings": POOLS}
"""The least values that production takes."""
PICKER = {"enabled": True, "tenant": "edge", "tlsSecret": "picker"}
SHARED = {"sql": {"name": "stores", "key": "sql"}, "counters": {"name": "stores", "key": "counters"}}


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_finds_nothing_wrong_with_an_example(name: str) -> None:
    done = helm("lint", "--strict", str(CHARTS / "tidegate"), "--values", str(example("tidegate", name)))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_manifests_of_an_example_meet_the_schemas(name: str) -> None:
    assert problems(rendered("tidegate", name)) == []


def everything() -> list[Document]:
    """With all that a value can switch on and no example has."""
    return rendered(
        "tidegate",
        "fleet-100-gpus",
        tls={"secret": "llm-tls", "issuer": {"name": "public", "kind": "ClusterIssuer"}, "dnsNames": ["llm.example.com"]},
        ingress={"enabled": True, "className": "nginx", "hosts": ["llm.example.com"], "tlsSecret": "llm-tls"},
        service={"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
        image={"pullSecrets": ["registry"]},
        nodeSelector={"pool": "cpu"},
        tolerations=[{"key": "cpu", "operator": "Exists"}],
        affinity={"nodeAffinity": {}},
        podLabels={"team": "ml"},
        podAnnotations={"a": "b"},
        secrets={"env": [{"variable": "ENGINE_KEY", "name": "engines", "key": "api-key"}]},
    )


def test_the_manifests_with_everything_switched_on_meet_the_schemas() -> None:
    documents = everything()
    assert problems(documents) == []
    assert {d["kind"] for d in documents} >= {
        *("StatefulSet", "Service", "ServiceAccount", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Job"),
        *("Ingress", "HTTPRoute", "ServiceMonitor", "PrometheusRule", "Certificate"),
    }


@pytest.mark.parametrize("policies", [POLICY, {**POLICY, "from": "database"}, {**POLICY, "prompts": {"p.yaml": "name: p\n"}}])
def test_every_source_of_policies_meets_the_schemas(policies: dict[str, Any]) -> None:
    assert problems(rendered("tidegate", **LEAST | {"policies": policies, "stores": SHARED, "replicas": 1})) == []


def test_bundled_stores_meet_the_schemas() -> None:
    bundled = {"postgres": {"enabled": True, "password": {"name": "pg"}}, "valkey": {"enabled": True, "password": {"name": "vk"}}}
    settings = {**POOLS, "files": {"enabled": False}, "batches": {"enabled": False}}
    documents = rendered("tidegate", **LEAST | {"mode": "trial", "replicas": 2, "stores": {"bundled": bundled}, "settings": settings})
    assert problems(documents) == []
    assert {d["metadata"]["name"] for d in documents if d["kind"] == "StatefulSet"} == {"tidegate", "tidegate-postgres", "tidegate-valkey"}


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("StatefulSet", lambda d: d["spec"].update(replicas="two")),
        ("StatefulSet", lambda d: d["spec"]["template"]["spec"]["containers"][0].update(readOnly=True)),
        ("NetworkPolicy", lambda d: d["spec"]["ingress"][0].update(form=[])),
        ("HTTPRoute", lambda d: d["spec"]["rules"][0].update(timeout="1s")),
        ("ServiceMonitor", lambda d: d["spec"]["endpoints"][0].update(every="1s")),
        ("PrometheusRule", lambda d: d["spec"]["groups"][0]["rules"][0].pop("expr")),
        ("Certificate", lambda d: d["spec"].pop("issuerRef")),
    ],
)
def test_the_schemas_object_to_a_mistake(kind: str, spoil: Any) -> None:
    documents = yaml.safe_load(yaml.safe_dump(everything()))
    spoiled = next(d for d in documents if d["kind"] == kind)
    spoil(spoiled)
    assert problems([spoiled]) != []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"replica": 2}, "Additional property replica is not allowed"),
        ({"replicas": 0}, "replicas: Must be greater than or equal to 1"),
        ({"replicas": "2"}, "replicas: Invalid type. Expected: integer, given: string"),
        ({"mode": "test"}, 'mode must be one of the following: "production", "trial"'),
        ({"image": {"digest": "sha256:abc"}}, "image.digest: Does not match pattern"),
        ({"image": {"repository": "tidegate:1"}}, "image.repository: Does not match pattern"),
        ({"ports": {"data": 80}}, "ports.data: Must be greater than or equal to 1024"),
        ({"podSecurity": {"uid": 0}}, "podSecurity.uid: Must be greater than or equal to 1"),
        ({"podSecurity": {"privileged": True}}, "Additional property privileged is not allowed"),
        ({"secrets": {"pepper": {"value": "hunter2"}}}, "Additional property value is not allowed"),
        ({"secrets": {"env": [{"variable": "A B", "name": "s", "key": "k"}]}}, "secrets.env.0.variable: Does not match pattern"),
        ({"stores": {"sql": {"url": "postgresql://u:p@db/t"}}}, "Additional property url is not allowed"),
        ({"persistence": {"size": "lots"}}, "persistence.size: Does not match pattern"),
        ({"policies": {"from": "ftp"}}, "policies.from must be one of"),
        ({"policies": {"files": {"../x.yaml": "a"}}}, "policies.files"),
        ({"policies": {"git": {"repository": "https://user:word@git.example.com/x"}}}, "policies.git.repository: Does not match pattern"),
        ({"policies": {"git": {"folder": "../etc"}}}, "policies.git.folder"),
        ({"networkPolicy": {"egress": [{"ports": [{"port": 443}]}]}}, "to is required"),
        ({"networkPolicy": {"dns": []}}, "networkPolicy.dns: Array must have at least 1 items"),
        ({"networkPolicy": {"dns": [{"to": [{"ipBlock": {"cidr": "169.254.20.10/32"}}]}]}}, "networkPolicy.dns.0: ports is required"),
        ({"networkPolicy": {"apiServer": [{"cidr": "api", "port": 443}]}}, "networkPolicy.apiServer.0.cidr: Does not match pattern"),
        ({"networkPolicy": {"adminFrom": [{}]}}, "networkPolicy.adminFrom.0: Must have at least 1 properties"),
        ({"ingress": {"hosts": ["UPPER_case.example"]}}, "ingress.hosts.0: Does not match pattern"),
        ({"httpRoute": {"hostnames": ["llm.example.com:443"]}}, "httpRoute.hostnames.0: Does not match pattern"),
        ({"tls": {"dnsNames": ["*.*.example.com"]}}, "tls.dnsNames.0: Does not match pattern"),
        ({"topologySpread": {"zones": "Always"}}, "topologySpread.zones must be one of"),
        ({"engines": [{"pool": "chat", "service": "engines"}]}, "engines.0: replicas is required"),
        ({"engines": [{"pool": "chat", "service": "e", "replicas": 1, "role": "draft"}]}, "engines.0.role must be one of"),
        ({"settings": {"workers": 100}}, "settings.workers: Must be less than or equal to 64"),
        ({"settings": {"pools": [{"name": "a b"}]}}, "settings.pools.0.name: Does not match pattern"),
        ({"claims": [{"name": "t", "claim": "t", "path": "tokens"}]}, "claims.0.path: Does not match pattern"),
        ({"metrics": {"prometheusRule": {"runbooks": "docs"}}}, "metrics.prometheusRule.runbooks: Does not match pattern"),
        ({"preStopSeconds": -1}, "preStopSeconds: Must be greater than or equal to 0"),
    ],
)
def test_the_schema_refuses(values: dict[str, Any], said: str) -> None:
    assert said in refusal("tidegate", **{**LEAST, **values})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {}}, "settings.pools: is empty; name the pools of engines"),
        ({"settings": {**POOLS, "admin": {"bind": "0.0.0.0:1"}}}, "settings.admin.bind: the chart writes the address; use ports.admin"),
        ({"settings": {**POOLS, "data": {"tls": {}}}}, "settings.data.tls: the chart writes it; use tls.secret"),
        ({"settings": {**POOLS, "stores": {"sql": "sqlite:///x"}}}, "settings.stores: the chart writes this part"),
        ({"settings": {**POOLS, "secrets": {}}}, "settings.secrets: the chart writes this part"),
        ({"image": {"tag": "latest"}}, "image.tag: latest is another image tomorrow; write a version"),
        ({"replicas": 2}, "replicas: 2 gateways cannot share SQLite; name PostgreSQL in stores.sql"),
        ({"replicas": 2, "stores": {"sql": {"name": "s"}}}, "replicas: 2 gateways would each grant the whole limits; name Valkey"),
        ({"replicas": 2, "stores": SHARED}, "settings.files: gateways do not share a folder of callers' files; write settings.files.s3"),
        ({"secrets": {"adminToken": {"name": "t"}}, "stores": SHARED}, "secrets.pepper.name: PostgreSQL needs a pepper"),
        ({"secrets": {}}, "secrets.adminToken.name: without a token"),
        ({"persistence": {"enabled": False}}, "persistence.enabled: without a claim a lost node loses usage"),
        (
            {"stores": {"bundled": {"postgres": {"enabled": True, "password": {"name": "p"}}}}},
            "one Pod without backups is no store for production; name an external one in stores.sql, or write mode: trial",
        ),
        (
            {"stores": {"bundled": {"valkey": {"enabled": True, "password": {"name": "p"}}}}},
            "stores.bundled.valkey: one Pod without backups is no store for production; name an external one in stores.counters",
        ),
        (
            {"mode": "trial", "stores": {"bundled": {"valkey": {"enabled": True}}}},
            "stores.bundled.valkey.password.name: name an existing Secret",
        ),
        (
            {"mode": "trial", "stores": {**SHARED, "bundled": {"valkey": {"enabled": True, "password": {"name": "p"}}}}},
            "two counter stores; keep one",
        ),
        ({"policies": {}}, "policies.files: is empty; write a policy"),
        ({"policies": {"from": "git"}}, "policies.git.repository: is empty"),
        ({"policies": {**POLICY, "from": "git", "git": {"repository": "https://g/x"}}}, "policies.files: with policies.from: git"),
        ({"policies": {**POLICY, "existingConfigMap": "mine"}}, "two sources; keep one"),
        ({"ingress": {"enabled": True}}, "ingress.hosts: is empty"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs: is empty"),
        ({"tls": {"issuer": {"name": "ca"}}}, "tls.secret: is empty; name the Secret that cert-manager shall make"),
        (
            {"engines": [{"pool": "chta", "service": "e", "replicas": 1}]},
            'engines: there is no pool "chta" in settings.pools; there are chat',
        ),
        (
            {"settings": {"pools": [{"name": "chat", "discover": {"kubernetes": {"service": "v"}}}]}},
            "networkPolicy.apiServer: is empty, and a pool of settings.pools discovers its engines in this cluster; write the address",
        ),
        ({"engineTls": [{"pool": "chta", "secret": "e"}]}, 'engineTls: there is no pool "chta" in settings.pools; there are chat'),
        ({"settings": {**POOLS, "picker": {"fallbacks": 1}}}, "settings.picker: its Service and its NetworkPolicy are the chart's"),
        ({"settings": {**POOLS, "picker": {"bind": ":1"}}, "picker": PICKER}, "settings.picker.bind: the chart writes it; use picker"),
        ({"picker": {"enabled": True}}, "picker.tenant: is empty; name the tenant whose policy"),
        ({"picker": {"enabled": True, "tenant": "edge"}}, "picker.tlsSecret: is empty; name the Secret of its certificate"),
        ({"picker": {**PICKER, "plainText": True}}, "picker.plainText: contradicts picker.tlsSecret"),
        ({"picker": {"enabled": True, "tenant": "edge", "plainText": True, "clientCa": True}}, "picker.clientCa: needs picker.tlsSecret"),
        ({"ports": {"data": 8081}}, "ports.admin: is 8081, as ports.data; write another one"),
        ({"ports": {"picker": 8080}, "picker": PICKER}, "ports.picker: is 8080, as ports.data; write another one"),
        (
            {"engineTls": [{"pool": "chat", "secret": "a"}, {"pool": "chat", "secret": "b"}]},
            'engineTls: two items are for pool "chat"; keep one',
        ),
        (
            {
                "settings": {"pools": [{"name": "a"}, {"name": "b"}]},
                "engineTls": [{"pool": name, "secret": "e", "issuer": {"name": "ca"}} for name in "ab"],
            },
            'engineTls: Secret "e" is made twice; write its issuer once',
        ),
        (
            {"engines": [{"pool": "chat", "service": "e", "replicas": 1}, {"pool": "chat", "service": "e", "replicas": 2, "port": 1}]},
            'engines: service "e" stands twice (pools "chat" and "chat")',
        ),
        ({"podLabels": {"app.kubernetes.io/component": "x"}}, "podLabels: app.kubernetes.io/component is the chart's"),
        ({"podLabels": {"helm.sh/chart": "x"}}, "podLabels: helm.sh/chart is the chart's"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "networkPolicy.adminFrom: is empty, so that Prometheus cannot reach"),
        ({"picker": PICKER}, "networkPolicy.pickerFrom: is empty, and the picker asks nobody for a key"),
    ],
)
def test_the_chart_refuses_what_contradicts_itself(values: dict[str, Any], said: str) -> None:
    assert said in refusal("tidegate", **{**LEAST, **values})


def test_the_least_values_render() -> None:
    assert problems(rendered("tidegate", **LEAST)) == []


@pytest.mark.req("R62")
@pytest.mark.parametrize("drain", [{}, {"accept_s": 0.5, "grace_s": 600.2}, {"grace_s": 0.0}])
@pytest.mark.parametrize("pre_stop", [0, 5, 30])
def test_a_pod_may_drain_to_its_end_before_it_is_killed(drain: dict[str, float], pre_stop: int) -> None:
    values = {**LEAST, "settings": {**POOLS, "drain": drain}, "preStopSeconds": pre_stop}
    pod = pods(rendered("tidegate", **values))["StatefulSet/tidegate"]
    whole = {"accept_s": 5.0, "grace_s": 120.0} | drain
    slept = pod["containers"][0].get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})["preStop"]["sleep"]["seconds"]
    assert slept == pre_stop
    assert pod["terminationGracePeriodSeconds"] >= slept + whole["accept_s"] + whole["grace_s"] + 15


def test_probes_ask_the_port_that_callers_cannot_reach() -> None:
    documents = rendered("tidegate", "eight-gpu-node")
    container = pods(documents)["StatefulSet/tidegate"]["containers"][0]
    for probe, path in (("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "admin"}
    services = {d["metadata"]["name"]: d["spec"]["ports"] for d in documents if d["kind"] == "Service"}
    assert [port["targetPort"] for port in services["tidegate"]] == ["data"]
    backend = of(documents, "Ingress")["spec"]["rules"][0]["http"]["paths"][0]["backend"]
    assert backend == {"service": {"name": "tidegate", "port": {"name": "data"}}}


@pytest.mark.req("R62")
def test_the_gateway_reaches_engines_dns_and_what_the_values_list() -> None:
    policy = of(rendered("tidegate", "eight-gpu-node"), "NetworkPolicy", "tidegate")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    dns, engines, listed = policy["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    assert engines == {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/component": "engine"}}}]}
    assert listed["to"] == [{"ipBlock": {"cidr": "10.20.0.0/24"}}]
    data, admin = policy["ingress"]
    assert (data["ports"][0]["port"], admin["ports"][0]["port"]) == ("data", "admin")
    assert data["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}]
    assert admin["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


@pytest.mark.req("R62")
def test_names_are_asked_for_where_the_values_say() -> None:
    """By default the cluster's DNS; NodeLocal DNSCache listens at an address of the node, which no selector of Pods finds."""
    ports = [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    pods_of_dns = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    local = {"to": [pods_of_dns, {"ipBlock": {"cidr": "169.254.20.10/32"}}], "ports": ports}
    for values, dns in (({}, {"to": [pods_of_dns], "ports": ports}), ({"networkPolicy": {"dns": [local]}}, local)):
        documents = rendered("tidegate", **LEAST | {"stores": SHARED} | values)
        assert problems(documents) == []
        for policy in ("tidegate", "tidegate-migrations"):
            assert of(documents, "NetworkPolicy", policy)["spec"]["egress"][0] == dns, policy


def test_engines_admit_the_gateway_by_the_name_that_nameoverride_changes() -> None:
    admitted = yaml.safe_load((CHARTS / "engines" / "values.yaml").read_text())["networkPolicy"]["gateway"]["podSelector"]["matchLabels"]

    def admits(**values: Any) -> bool:
        labels = of(rendered("tidegate", **LEAST | values), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
        return bool(admitted.items() <= labels.items())

    assert admits()
    assert admits(fullnameOverride="llm")
    assert not admits(nameOverride="llm"), "the comment beside nameOverride says what to write into the chart of the engines"


def test_disruptions_and_spreading_count_the_gateways_pods_and_no_others() -> None:
    documents = rendered("tidegate", "eight-gpu-node")
    gateway = of(documents, "StatefulSet", "tidegate")
    selector = gateway["spec"]["selector"]
    assert of(documents, "PodDisruptionBudget")["spec"]["selector"] == selector
    spread = gateway["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert {s["topologyKey"] for s in spread} == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert [s["labelSelector"] for s in spread] == [selector] * 2
    found = [
        d["metadata"]["name"]
        for d in documents
        if "template" in d.get("spec", {}) and selector["matchLabels"].items() <= d["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert found == ["tidegate"], "the migration Job is not one of them"


def test_a_trials_password_of_the_characters_that_the_values_name_arrives_whole() -> None:
    named = "azAZ09-._~"
    bundled = {store: {"enabled": True, "password": {"name": store}} for store in ("postgres", "valkey")}
    container = pods(rendered("tidegate", **LEAST | {"mode": "trial", "stores": {"bundled": bundled}}))["StatefulSet/tidegate"][
        "containers"
    ][0]
    urls = [e["value"] for e in container["env"] if e["name"].startswith("TIDEGATE__STORES__")]
    assert len(urls) == 2
    for url in urls:
        read = urlsplit(re.sub(r"\$\(\w+\)", named, url))
        assert unquote(read.password or "") == named
        assert read.hostname in ("tidegate-postgres", "tidegate-valkey")


API_SERVER = {"networkPolicy": {"apiServer": [{"cidr": "10.96.0.1/32", "port": 443}]}}
SLICES = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
PODS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
POOL_OF_PODS = [{"apiGroups": ["inference.networking.k8s.io"], "resources": ["inferencepools"], "verbs": ["list", "watch"]}, *PODS]


@pytest.mark.req("R62")
@pytest.mark.parametrize(
    ("kubernetes", "namespace", "rules"),
    [
        ({"service": "vllm"}, "llm", SLICES),
        ({"selector": "app=vllm", "namespace": "engines"}, "engines", SLICES),
        ({"pods": "app=vllm", "namespace": "engines"}, "engines", PODS),
        ({"llm_inference_service": "tide"}, "llm", PODS),
        ({"inference_pool": "tide"}, "llm", POOL_OF_PODS),
    ],
)
def test_discovery_has_the_rights_that_its_source_needs(kubernetes: dict[str, str], namespace: str, rules: list[Document]) -> None:
    pool = {"name": "chat", "model": "tiny", "discover": {"kubernetes": kubernetes}}
    documents = rendered("tidegate", **LEAST | API_SERVER | {"settings": {"pools": [pool]}})
    assert problems(documents) == []
    role, binding = of(documents, "Role"), of(documents, "RoleBinding")
    assert (role["metadata"]["namespace"], role["rules"]) == (namespace, rules)
    assert binding["metadata"]["namespace"] == namespace
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role["metadata"]["name"]}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tidegate", "namespace": "llm"}]
    pod = pods(documents)["StatefulSet/tidegate"]
    token = next(v for v in pod["volumes"] if v["name"] == "api-server")["projected"]["sources"]
    assert token[0] == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    assert [source.get("configMap", {}).get("name") for source in token] == [None, "kube-root-ca.crt", None]
    egress = of(documents, "NetworkPolicy", "tidegate")["spec"]["egress"]
    assert {"ports": [{"port": 443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.96.0.1/32"}}]} in egress


def test_two_pools_of_one_namespace_share_a_role_and_two_namespaces_have_two() -> None:
    sources = [{"service": "a", "namespace": "one"}, {"pods": "app=b", "namespace": "one"}, {"service": "c", "namespace": "two"}]
    pools = [{"name": f"p{at}", "model": "tiny", "discover": {"kubernetes": source}} for at, source in enumerate(sources)]
    documents = rendered("tidegate", **LEAST | API_SERVER | {"settings": {"pools": pools}})
    roles = {d["metadata"]["namespace"]: d["rules"] for d in documents if d["kind"] == "Role"}
    assert roles == {"one": [*SLICES, *PODS], "two": SLICES}


@pytest.mark.req("R62")
def test_without_discovery_in_this_cluster_the_api_server_is_out_of_reach() -> None:
    """None at all, by DNS, and in another cluster, whose API server has an address and a token of its own."""
    elsewhere = {"kubernetes": {"service": "v", "address": "https://api.example.internal:6443", "token_file": "token"}}
    for discover in (None, {"dns": "engines.llm.svc", "port": 8000}, elsewhere):
        pool = POOLS["pools"][0] if discover is None else {"name": "chat", "model": "tiny", "discover": discover}
        documents = rendered("tidegate", **LEAST | API_SERVER | {"settings": {"pools": [pool]}})
        assert not {d["kind"] for d in documents} & {"Role", "RoleBinding"}
        assert "10.96.0.1" not in yaml.safe_dump(of(documents, "NetworkPolicy", "tidegate"))
        assert "serviceAccountToken" not in yaml.safe_dump(documents)


def test_a_gateway_may_ask_the_picker_and_nobody_else() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}]
    settings = {**POOLS, "picker": {"fallbacks": 2}}
    values = {"picker": {**PICKER, "clientCa": True}, "networkPolicy": {"pickerFrom": peers}, "settings": settings}
    documents = rendered("tidegate", **{**LEAST, **values})
    assert problems(documents) == []
    asks = {rule["ports"][0]["port"]: rule.get("from") for rule in of(documents, "NetworkPolicy", "tidegate")["spec"]["ingress"]}
    assert asks == {"data": None, "picker": peers}
    (port,) = of(documents, "Service", "tidegate-picker")["spec"]["ports"]
    pod = pods(documents)["StatefulSet/tidegate"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in pod["containers"][0]["ports"]
    # what the gateway reads is where the Secret is mounted
    written = yaml.safe_load(of(documents, "ConfigMap", "tidegate")["data"]["tidegate.yaml"])["picker"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {str(Path(file).parent) for file in written["tls"].values()} == {mounts["picker-tls"]}
    read = PickerSettings.model_validate(written)
    assert (read.tenant, read.bind, read.fallbacks) == ("edge", f"0.0.0.0:{port['port']}", 2)
    assert set(read.tls_files) == set(PickerTls.model_fields)
    assert not [d for d in rendered("tidegate", **LEAST) if "picker" in yaml.safe_dump(d)], "off by default"


def test_nobody_reaches_the_admin_port_unless_the_values_say_so() -> None:
    policy = of(rendered("tidegate", **LEAST), "NetworkPolicy", "tidegate")["spec"]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ["data"]


def test_the_schema_is_migrated_before_a_pod_of_the_new_version_starts() -> None:
    documents = rendered("tidegate", "eight-gpu-node")
    job = of(documents, "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-1] == "--rehearse"
    needed = {v["configMap"]["name"] for v in job["spec"]["template"]["spec"]["volumes"] if "configMap" in v}
    hooked = {
        d["metadata"]["name"]: int(d["metadata"]["annotations"]["helm.sh/hook-weight"])
        for d in documents
        if d["kind"] == "ConfigMap" and "helm.sh/hook" in d["metadata"].get("annotations", {})
    }
    assert set(hooked) == needed
    assert max(hooked.values()) < int(job["metadata"]["annotations"]["helm.sh/hook-weight"])
    settings = [of(documents, "ConfigMap", name)["data"] for name in ("tidegate", "tidegate-migrations")]
    assert settings[0] == settings[1]


ISSUER = {"name": "ca"}
TWO_POOLS = {"pools": [{"name": name, "model": "tiny"} for name in ("made", "there")]}
TO_TWO_POOLS = [{"pool": name, "service": f"e-{name}", "replicas": 1} for name in ("made", "there")]
ISSUED: dict[str, Any] = {
    "stores": SHARED,
    "settings": {**TWO_POOLS, "picker": {"fallbacks": 1}},
    "engines": TO_TWO_POOLS,
    "tls": {"secret": "llm-tls", "issuer": ISSUER, "dnsNames": ["llm.example.com"]},
    "engineTls": [{"pool": "made", "secret": "made-client", "issuer": ISSUER}, {"pool": "there", "secret": "there-client"}],
    "picker": {**PICKER, "tlsSecret": "llm-tls"},
    "networkPolicy": {"pickerFrom": [{"podSelector": {}}]},
}
"""Certificates that cert-manager makes beside one that there is, all that the migration Job might mount."""


@pytest.mark.parametrize("name", [*EXAMPLES, "issued"])
def test_a_job_before_the_release_mounts_no_secret_that_the_release_makes(name: str) -> None:
    """`Certificate`s come after the hooks: the first installation would wait for them without end."""
    documents = rendered("tidegate", **LEAST | ISSUED) if name == "issued" else rendered("tidegate", name)
    made = {d["spec"]["secretName"] for d in documents if d["kind"] == "Certificate"}
    for job in [d for d in documents if "helm.sh/hook" in d["metadata"].get("annotations", {}) and d["kind"] == "Job"]:
        volumes = job["spec"]["template"]["spec"]["volumes"]
        assert not made & {v["secret"]["secretName"] for v in volumes if "secret" in v}
        mounted = [m["name"] for m in job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]]
        assert set(mounted) == {v["name"] for v in volumes if v["name"] != "git-secret"}


def test_the_job_of_migrations_reads_all_settings_but_those_of_certificates_that_come_later() -> None:
    documents = rendered("tidegate", **LEAST | ISSUED)
    assert problems(documents) == []
    whole, before = (
        yaml.safe_load(of(documents, "ConfigMap", name)["data"]["tidegate.yaml"]) for name in ("tidegate", "tidegate-migrations")
    )
    assert whole["pools"][0].pop("tls")
    assert whole["data"].pop("tls")
    assert whole.pop("picker")
    assert whole == before, "addresses of engines stay https"
    assert before["pools"][1]["tls"], "one that the operator keeps is read"
    secrets = [v["secret"]["secretName"] for v in pods(documents)["Job/tidegate-migrations"]["volumes"] if "secret" in v]
    assert secrets == ["there-client"]


def test_other_settings_start_other_pods_and_other_policies_do_not() -> None:
    def checksum(**values: Any) -> str:
        template = of(rendered("tidegate", **{**LEAST, **values}), "StatefulSet")["spec"]["template"]
        found: str = template["metadata"]["annotations"]["checksum/settings"]
        return found

    assert checksum(settings={**POOLS, "workers": 2}) != checksum()
    assert checksum(policies={"files": {"default.yaml": "tenant: acme\n"}}) == checksum()


def test_alerts_and_dashboards_arrive_whole() -> None:
    documents = rendered("tidegate", "fleet-100-gpus")
    rules = yaml.safe_load((CHARTS / "alerts" / "tidegate.rules.yml").read_text())
    groups = of(documents, "PrometheusRule")["spec"]["groups"]
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "annotations" in rule:
                url = rule["annotations"]["runbook_url"]
                rule["annotations"]["runbook_url"] = url.replace("docs/", "https://docs.example.com/tidegate/", 1)
    assert groups == rules["groups"]
    boards = [d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["labels"].get("grafana_dashboard") == "1"]
    whole = {file.name: file.read_text() for file in (CHARTS / "dashboards").iterdir()}
    assert {name: text.strip() for d in boards for name, text in d["data"].items()} == {n: t.strip() for n, t in whole.items()}


def test_prometheus_scrapes_under_the_name_that_the_alerts_count_on() -> None:
    documents = rendered("tidegate", "eight-gpu-node")
    monitor = of(documents, "ServiceMonitor")["spec"]
    assert monitor["endpoints"][0]["relabelings"] == [{"targetLabel": "job", "replacement": "tidegate", "action": "replace"}]
    matched = [
        d["metadata"]["name"]
        for d in documents
        if d["kind"] == "Service" and monitor["selector"]["matchLabels"].items() <= d["metadata"]["labels"].items()
    ]
    assert matched == ["tidegate-admin"], "each gateway is scraped once"
