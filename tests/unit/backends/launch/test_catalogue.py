import itertools
from pathlib import Path

import pytest

from backends.dialects import DIALECTS
from backends.launch.catalogue import ENGINES, load, names, parse, shared_text, text_of
from backends.launch.config import LaunchConfig
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, LaunchError, resolve

CLASSES = ["70b-tp4", "8b", "cpu-test", "embeddings", "long-context", "moe-ep", "multi-lora", "pd-decode", "pd-prefill"]
OWN = "name: mine\nengine: vllm\nsummary: mine\nhardware: {gpus: 1}\nparameters: {id: a, model: /m, served_name: m}\n"
SIZING = "sizing: {model: {}, context: 1}\n"


def launched(name: str) -> Launch:
    config = load(name)
    return resolve(config, manifest_for(config.engine, config.version))


def test_every_class_is_there_for_both_engines() -> None:
    assert sorted(names()) == sorted(f"{engine}-{kind}" for engine, kind in itertools.product(ENGINES, CLASSES))


@pytest.mark.parametrize("name", names())
def test_a_file_is_what_it_is_called_and_says_why(name: str) -> None:
    config = load(name)
    assert (config.name, config.engine) == (name, name.partition("-")[0])
    assert text_of(name).count("#") >= 3


@pytest.mark.parametrize("name", [name for name in names() if "embeddings" not in name])
def test_every_engine_that_generates_shows_the_gateway_its_cache(name: str) -> None:
    flags = launched(name).flags
    events = flags["kv-events-config"]
    assert isinstance(events, dict)
    assert events["publisher"] == "zmq"
    assert events["replay_endpoint"]
    assert events["topic"] == f"kv@{name}@{launched(name).served_name}"
    if name.startswith("vllm"):
        assert flags["prefix-caching-hash-algo"] == "sha256_cbor"
        assert (flags["enable-prefix-caching"], flags["enable-prompt-tokens-details"]) == (True, True)
        assert events["enable_kv_cache_events"] is True
    else:
        assert (flags["enable-cache-report"], flags["enable-metrics"]) == (True, True)


@pytest.mark.parametrize("name", names())
def test_every_engine_orders_by_priority_as_its_dialect_says_bounds_its_queue_and_drains(name: str) -> None:
    launch = launched(name)
    flags = launch.flags
    assert flags["served-model-name"] == launch.served_name
    if name.startswith("vllm"):
        assert flags["scheduling-policy"] == "priority"
        assert int(str(flags["max-num-queued-reqs"])) > int(str(flags["max-num-seqs"]))
        assert flags["shutdown-timeout"] == launch.grace_s > 0
        assert launch.environment["PYTHONHASHSEED"] == "0"
    else:
        assert flags["enable-priority-scheduling"] is True
        low_first = flags.get("schedule-low-priority-values-first") is True
        assert DIALECTS["sglang"].priority is not None
        assert low_first == (DIALECTS["sglang"].priority.sooner == "lower"), "the order of the dialect and of the engines differ"
        assert int(str(flags["max-queued-requests"])) > 0
    assert launch.host == "127.0.0.1"


@pytest.mark.parametrize("name", [name for name in names() if "cpu-test" not in name])
def test_the_releases_are_those_that_were_promised(name: str) -> None:
    assert load(name).version == {"vllm": "0.33.0", "sglang": "0.5.23"}[load(name).engine]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engine: vllm\nname: a\nname: b\n", "'name' stands twice"),
        ("- a\n", "holds no mapping"),
        ("engine: tgi\n", "engine: is 'tgi'; write vllm or sglang"),
        ("engine: vllm\nflags: 3\n", "flags: must be a mapping"),
        (f"{OWN}flags: {{max-num-seq: 4}}\n{SIZING}", "--max-num-seq: vllm 0.33.0 has no such flag; did you mean --max-num-seqs?"),
        (f"{OWN}flags: {{max-num-seqs: many}}\n{SIZING}", "--max-num-seqs: takes a whole number, not 'many'"),
        (f"{OWN}flags: {{api-key: '{{nobody}}'}}\n{SIZING}", "--api-key: {nobody} is no parameter"),
        (f"{OWN}flags: {{}}\n{SIZING}colour: red\n", "colour: is no known field"),
        (f"{OWN}version: '0.1.0'\nflags: {{}}\n{SIZING}", "there is no list of the flags of vllm 0.1.0; releases with one: 0.32.0, 0.33.0"),
        ("a: [\n", "while parsing"),
    ],
)
def test_a_file_of_ones_own_is_refused_with_its_name_and_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(LaunchError) as caught:
        parse(text, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    assert says in str(caught.value)


def test_a_file_of_ones_own_is_laid_over_what_the_gateway_needs(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{OWN}flags: {{scheduling-policy: null, max-num-seqs: 3}}\n{SIZING}")
    config = load(str(file))
    assert isinstance(config, LaunchConfig)
    assert "scheduling-policy" not in config.flags
    assert config.flags["enable-prefix-caching"] is True
    assert config.flags["max-num-seqs"] == 3


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"did you mean vllm-8b\?"):
        load("vllm-8")
    with pytest.raises(LaunchError, match="cannot be read"):
        load(str(tmp_path / "none.yaml"))
    (tmp_path / "large.yaml").write_bytes(b"#" * 300_000)
    with pytest.raises(LaunchError, match="larger than"):
        load(str(tmp_path / "large.yaml"))


def test_the_shared_part_says_why_too() -> None:
    for engine in ENGINES:
        assert shared_text(engine).count("#") > 15
