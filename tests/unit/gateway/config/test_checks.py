import importlib.util

import trustme

from gateway.config.checks import RawSettings, contradictions
from gateway.config.load import read_settings
from policies.yaml.located import parse_yaml

DEFAULTS = {
    "data": {"bind": "127.0.0.1:8080", "tls": None},
    "admin": {"bind": "127.0.0.1:8081"},
    "stores": {"sql": "sqlite:///a.db"},
    "workers": 1,
    "engines": {"first_token_base_s": 10.0, "first_token_cap_s": 120.0, "client": "relay"},
}


def written(text=""):
    return RawSettings(parse_yaml(text.encode(), "t.yaml", {"PW": "x"}), DEFAULTS)


def found(text, folder):
    return [str(problem) for problem in contradictions(written(text), folder)]


def test_what_was_not_written_has_its_default():
    settings = written("data: {tls: 5}\nengines: {client: null}\n")
    assert settings.value("data", "bind") == "127.0.0.1:8080"
    assert settings.value("data", "tls") == 5
    assert settings.value("engines", "client") is None
    assert settings.value("nothing", "here") is None
    assert settings.text("data", "tls") == ""
    assert settings.number("engines", "first_token_base_s") == 10.0
    assert settings.count("data") == 0


def test_pool_names_are_told_when_all_of_them_are():
    assert written("pools: [{name: a}, {name: b, x: 1}]\n").pool_names() == ("a", "b")
    assert written("pools: [{name: a}, {}]\n").pool_names() is None
    assert written("").pool_names() is None


def test_defaults_contradict_nothing(tmp_path):
    assert found("", tmp_path) == []


def test_a_bind_may_meet_the_default_of_the_other(tmp_path):
    [problem] = found('data: {bind: "0.0.0.0:8081"}\n', tmp_path)
    assert problem.startswith("t.yaml:1:8: data.bind: the data port 0.0.0.0:8081 and the admin port 127.0.0.1:8081 would share a socket")


def test_a_cap_may_lie_below_the_default_base(tmp_path):
    assert "below first_token_base_s (10 s)" in found("engines: {first_token_cap_s: 5}\n", tmp_path)[0]
    assert found("engines: {first_token_base_s: 5, first_token_cap_s: 5}\n", tmp_path) == []


def test_passwords_in_database_urls(tmp_path):
    pepper = "secrets: {pepper: {env: P}}\n"
    for literal in ("postgresql://u:pw@h/d", "postgresql://u:${PW}x@h/d", "postgresql://h/d?password=pw", "postgresql://:pw@h/d"):
        assert "holds a password" in found(f"stores: {{sql: '{literal}'}}\n{pepper}", tmp_path)[0]
    for reference in ("postgresql://u:${PW}@h/d", "postgresql://u@h:5432/d", "postgresql://u:@/d?host=/run/db", "${PW}"):
        assert found(f"stores: {{sql: '{reference}'}}\n{pepper}", tmp_path) == []


def test_the_store_of_answers_names_a_server_without_its_password(tmp_path):
    (problem,) = found("cache: {store: 'redis://u:pw@h'}\n", tmp_path)
    assert "holds a password" in problem
    assert found("cache: {store: 'redis+cluster://a,b'}\n", tmp_path) == []


def test_a_certificate_needs_its_own_key(tmp_path):
    ca = trustme.CA()
    for name in ("a", "b"):
        issued = ca.issue_cert(f"{name}.example")
        issued.cert_chain_pems[0].write_to_path(str(tmp_path / f"{name}.crt"))
        issued.private_key_pem.write_to_path(str(tmp_path / f"{name}.key"))
    assert found("data: {tls: {certificate: a.crt, private_key: a.key}}\n", tmp_path) == []
    assert "cannot be used together" in found("data: {tls: {certificate: a.crt, private_key: b.key}}\n", tmp_path)[0]
    ca.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    picker = "picker: {tenant: acme, tls: {certificate: a.crt, private_key: a.key, client_ca: ca.crt}}\n"
    assert found(picker, tmp_path) == []
    for text in ("", "no certificate"):
        (tmp_path / "ca.crt").write_text(text)
        [problem] = found(picker, tmp_path)
        assert "picker.tls.client_ca: 'ca.crt' holds no certificate; name a PEM file with the CAs of clients' certificates" in problem
    (tmp_path / "c.key").write_text("no key")
    assert "cannot be used together" in found("data: {tls: {certificate: a.crt, private_key: c.key}}\n", tmp_path)[0]


def test_every_double_name_is_told(tmp_path):
    text = "pools:\n" + "- {name: p, backends: [{id: x}, {id: x}]}\n" * 2
    assert len(found(text, tmp_path)) == 4


def test_listeners_for_kv_events_and_their_addresses_are_not_shared(tmp_path):
    def pool(*events):
        rows = "".join(f"  - {{id: b{at}, kv_events: {{{fields}}}}}\n" for at, fields in enumerate(events))
        return f"pools:\n- name: p\n  backends:\n{rows}"

    listener = 'endpoint: "tcp://127.0.0.1:5557", bind: true'
    assert found(pool(listener), tmp_path) == []
    assert found("workers: 1\n" + pool(listener), tmp_path) == []
    (problem,) = found("workers: 2\n" + pool(listener), tmp_path)
    assert "2 workers cannot listen on one address; let the engine bind" in problem
    (problem,) = found(pool('endpoint: "tcp://a:1"', 'endpoint: "tcp://b:1"', 'endpoint: "tcp://a:1"'), tmp_path)
    assert "pools[0].backends[2].kv_events.endpoint: tcp://a:1 is the endpoint of pools[0].backends[0] already" in problem


def test_keys_of_an_issuer_must_be_there(tmp_path):
    text = "auth: {jwt: [{issuer: a, jwks: {file: keys.json}}]}\n"
    [problem] = found(text, tmp_path)
    assert "auth.jwt[0].jwks.file: 'keys.json' is no file that can be read" in problem
    (tmp_path / "keys.json").write_text("{}")
    assert found(text, tmp_path) == []


def test_the_console_signs_in_at_an_issuer_whose_tokens_count(tmp_path):
    def auth(console, audiences="[tidegate, console]", roles="{claim: [groups], map: {a: owner}}"):
        return f"auth: {{jwt: [{{issuer: a, audiences: {audiences}, roles: {roles}}}], console: {{client_id: console, {console}}}}}\n"

    assert found(auth("issuer: a"), tmp_path) == []
    [problem] = found(auth("issuer: b"), tmp_path)
    assert "auth.console.issuer: no entry of auth.jwt has this issuer, so its tokens are refused" in problem
    [problem] = found(auth("issuer: a", roles="null"), tmp_path)
    assert "auth.console.issuer: tokens of this issuer give no role" in problem
    [problem] = found(auth("issuer: a", audiences="[tidegate]"), tmp_path)
    assert "auth.console.client_id: ID tokens are for this client id, which is not among the issuer's audiences" in problem
    assert found(auth("issuer: a, token: access_token", audiences="[tidegate]"), tmp_path) == []


def test_load_is_pushed_by_dialects_that_do_and_at_ports_of_one_engine(tmp_path):
    def pool(dialect, *pushes):
        rows = "".join(f"  - {{id: {dialect}{at}, load_push: {{{fields}}}}}\n" for at, fields in enumerate(pushes))
        return f"- name: {dialect}\n  dialect: {dialect}\n  backends:\n{rows}"

    ranks = [f'endpoint: "tcp://10.0.0.1:{port}", ranks: 4' for port in (5559, 5563, 5562)]
    assert found("pools:\n" + pool("sglang", *ranks[:2]), tmp_path) == []
    (problem,) = found("pools:\n" + pool("sglang", ranks[0], ranks[2]), tmp_path)
    assert "load_push.endpoint: tcp://10.0.0.1:5562 is a port of pools[0].backends[0] already" in problem
    (problem,) = found("pools:\n" + pool("vllm", ranks[0]), tmp_path)
    assert "engines of dialect vllm push no load; remove it; these do: sglang" in problem
    found_by_dns = "pools: [{name: chat, model: m, discover: {dns: x, port: 1, ports: {load_push: 5600}}}]\n"
    [problem] = found(found_by_dns, tmp_path)
    assert "pools[0].discover.ports.load_push: engines of dialect vllm push no load; remove it" in problem


def test_engines_without_priorities_cannot_be_told_any(tmp_path):
    def pool(dialect):
        return f"pools:\n- {{name: p, {dialect}engine_priority: true, backends: []}}\n"

    for dialect in ("", "dialect: vllm, ", "dialect: sglang, ", "dialect: trtllm, ", "dialect: dynamo, "):
        assert found(pool(dialect), tmp_path) == []
    for dialect in ("tgi", "triton", "llamacpp", "openai"):
        [problem] = found(pool(f"dialect: {dialect}, "), tmp_path)
        assert f"engines of dialect {dialect} have no priorities" in problem and "vllm, sglang" in problem


def test_a_revision_that_no_label_can_say_cannot_be_asked_of_labels(tmp_path):
    def pool(revision, labels="labels: {revision: true}"):
        return f"pools:\n- {{name: p, {revision}discover: {{kubernetes: {{service: s, {labels}}}}}}}\n"

    for revision in ("", "revision: r2, ", "revision: 2024-06_b.1, "):
        assert found(pool(revision), tmp_path) == []
    assert found(pool("revision: 'sha256:ab', ", "labels: {pool: p}"), tmp_path) == []
    for revision in ("sha256:ab", "r2-", "a" * 64):
        [problem] = found(pool(f"revision: '{revision}', "), tmp_path)
        assert f"no label of Kubernetes can say revision {revision!r}" in problem
        assert "discover.kubernetes.labels.revision" in problem


def test_engines_that_take_no_effort_cannot_get_one_for_the_switch(tmp_path):
    def pool(dialect):
        return f"pools:\n- {{name: p, {dialect}thinking_as_effort: {{enabled: medium, disabled: low}}, backends: []}}\n"

    for dialect in ("", "dialect: sglang, ", "dialect: trtllm, ", "dialect: dynamo, ", "dialect: llamacpp, ", "dialect: openai, "):
        assert found(pool(dialect), tmp_path) == []
    for dialect in ("tgi", "triton"):
        [problem] = found(pool(f"dialect: {dialect}, "), tmp_path)
        assert f"thinking_as_effort: engines of dialect {dialect} take no reasoning_effort; remove it" in problem


def test_counters_in_memory_are_for_one_worker(tmp_path):
    [problem] = found('workers: 4\nstores: {counters: "memory:"}\n', tmp_path)
    assert "stores.counters" in problem and "4 workers would admit 4 times every limit" in problem
    assert found('workers: 1\nstores: {counters: "memory:"}\n', tmp_path) == []


def test_a_backend_is_not_the_gateway_itself(tmp_path):
    def said(url, binds=""):
        return found(f'{binds}pools: [{{name: p, backends: [{{id: a, url: "{url}"}}]}}]\n', tmp_path)

    for url in ("http://127.0.0.1:8081", "http://localhost:8081/prefix", "http://LOCALHOST:8081"):
        [problem] = said(url)
        assert "url: is the admin port of this gateway (admin.bind 127.0.0.1:8081); name the engine's own port" in problem
    assert "is the data port" in said("http://127.0.0.1:8080")[0]
    anywhere = 'data: {bind: "0.0.0.0:80"}\n'
    assert "is the data port of this gateway (data.bind 0.0.0.0:80)" in said("http://127.0.0.1", anywhere)[0]
    assert "is the data port" in said("http://[::1]:80", 'data: {bind: "[::]:80"}\n')[0]
    for url in ("http://127.0.0.1:8082", "http://10.0.0.1:8080", "http://engine:8081", "http://127.0.0.1:x", "https://127.0.0.1:443"):
        assert said(url) == []
    assert said("http://10.0.0.1", anywhere) == []  # an engine elsewhere, on the port that is ours here
    assert said("http://127.0.0.1:0", 'data: {bind: "127.0.0.1:0"}\n') == []


def test_the_proxy_protocol_needs_proxies(tmp_path):
    [problem] = found("data: {trusted_proxies: {proxy_protocol: true}}\n", tmp_path)
    assert "data.trusted_proxies.proxy_protocol: only trusted proxies may send the header, and none is named" in problem
    assert found("data: {trusted_proxies: {proxy_protocol: true, networks: [10.0.0.0/24]}}\n", tmp_path) == []
    [problem] = found("data: {trusted_proxies: {destination_endpoint: true}}\n", tmp_path)
    assert "data.trusted_proxies.destination_endpoint: only trusted proxies may name engines, and none is named" in problem
    assert found("data: {trusted_proxies: {destination_endpoint: true, networks: [10.0.0.0/24]}}\n", tmp_path) == []
    assert found("data: {trusted_proxies: {proxy_protocol: false}}\n", tmp_path) == []


def test_percentages_of_alerts_are_above_nothing_and_may_be_above_a_whole_budget(tmp_path):
    def said(percent):
        (tmp_path / "policies").mkdir(exist_ok=True)
        file = tmp_path / "tidegate.yaml"
        file.write_text(f"pools: [{{name: p, model: m, backends: []}}]\nalerts: {{at_percent: [50, {percent}]}}\n")
        return [str(problem).partition("yaml:")[2] for problem in read_settings(file, {}).problems]

    assert [said(percent) for percent in (1, 100, 101, 1000)] == [[]] * 4
    assert said(0) == ["2:27: alerts.at_percent[1]: must be at least 1, not 0"]
    assert said(-20) == ["2:27: alerts.at_percent[1]: must be at least 1, not -20"]
    assert said(1001) == ["2:27: alerts.at_percent[1]: must be at most 1000, not 1001"]
    assert said(0.5) == ["2:27: alerts.at_percent[1]: must be a whole number, not 0.5; write a whole number without quotes or unit"]


def test_traces_need_the_messages_of_opentelemetry_and_another_package_of_it_does_not_do(tmp_path, monkeypatch):
    traces = "traces: {exporters: {main: {endpoint: 'http://collector:4318/v1/traces'}}}\n"
    assert found(traces, tmp_path) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "opentelemetry" else None)
    [problem] = found(traces, tmp_path)
    assert "traces: needs opentelemetry-proto, which is not installed" in problem
    assert "pip install 'tidegate[otel]'" in problem
    [problem] = found("request_log: {otlp: {endpoint: 'http://collector:4318/v1/logs'}}\n", tmp_path)
    assert "request_log.otlp: needs opentelemetry-proto" in problem


def test_languages_are_counted_only_where_the_package_for_it_is_installed(tmp_path, monkeypatch):
    assert found("metrics: {language_share: 0.01}\n", tmp_path) == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [problem] = found("metrics: {language_share: 0.01}\n", tmp_path)
    assert "metrics.language_share: needs a package that is not installed" in problem
    assert "pip install 'tidegate[guards]'" in problem
    assert found("metrics: {language_share: 0}\n", tmp_path) == []


def test_the_picker_needs_grpc_and_a_port_of_its_own(tmp_path, monkeypatch):
    assert found("picker: {tenant: acme}\n", tmp_path) == []
    [problem] = found("data: {bind: '0.0.0.0:9002'}\npicker: {tenant: acme}\n", tmp_path)
    assert "picker.bind: the endpoint picker 127.0.0.1:9002 and the data port 0.0.0.0:9002 would share a socket" in problem
    [problem] = found("picker: {tenant: acme, tls: {certificate: no.crt, private_key: no.key}}\n", tmp_path)[:1]
    assert "picker.tls.certificate: 'no.crt' is no file that can be read" in problem
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    [problem] = found("picker: {tenant: acme}\n", tmp_path)
    assert "picker: needs grpcio, which is not installed" in problem
    assert "pip install 'tidegate[picker]'" in problem


def test_forecasts_need_a_prometheus(tmp_path):
    pools = "pools: [{name: a, scale: {predict: {}}}, {name: b, scale: {max: 3}}]\n"
    [problem] = found(pools, tmp_path)
    assert "pools[0].scale.predict: needs past days from Prometheus" in problem
    assert "set console.prometheus_url" in problem
    roles = found("pools: [{name: a, scale_roles: {prefill: {max: 2}, decode: {predict: {days: 3}}}}]\n", tmp_path)
    assert ["pools[0].scale_roles.decode.predict" in one for one in roles] == [True]
    assert found(pools + 'console: {prometheus_url: "http://prometheus:9090"}\n', tmp_path) == []
