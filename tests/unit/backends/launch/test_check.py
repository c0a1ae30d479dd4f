import msgspec
import pytest

from backends.launch.catalogue import load
from backends.launch.check import EngineNeeds, compare, needs_of
from backends.launch.engine_facts import EngineFacts
from backends.launch.manifest import manifest_for, manifests
from backends.launch.resolve import resolve
from domain.model_revisions import Pinned

GOOD = EngineFacts(
    served_names=("m",),
    context=4096,
    block_size=32,
    prefix_caching=True,
    hash_algorithm="sha256_cbor",
    kv_events=True,
    events_endpoint="tcp://*:5557",
    replay=True,
    sequences=16,
    admitted=24,
    lora=True,
    lora_slots=2,
    lora_rank=8,
    lora_held=4,
    usage_details=True,
    priority="lower first",
    grace_s=20,
)


def good(engine: str) -> EngineFacts:
    return msgspec.structs.replace(GOOD, priority="lower first" if engine == "vllm" else "higher first")


NEEDS = EngineNeeds(served_name="m", context=4096, block_size=32, sequences=16, lora_slots=2, lora_rank=8, lora_held=4)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_fits_is_ok_throughout(engine: str) -> None:
    assert {finding.state for finding in compare(engine, good(engine), NEEDS)} == {"ok"}


@pytest.mark.parametrize(
    ("engine", "wrong", "what", "flag"),
    [
        ("vllm", {"served_names": ("x",)}, "served name", "--served-model-name m"),
        ("vllm", {"context": 100}, "context length", "--max-model-len 4096"),
        ("sglang", {"context": 100}, "context length", "--context-length 4096"),
        ("vllm", {"prefix_caching": False}, "prefix cache", "--enable-prefix-caching"),
        ("sglang", {"prefix_caching": False}, "prefix cache", "--disable-radix-cache"),
        ("vllm", {"hash_algorithm": "sha256"}, "hash algorithm", "--prefix-caching-hash-algo sha256_cbor"),
        ("vllm", {"block_size": 16}, "block size", "--block-size 32"),
        ("sglang", {"block_size": 1}, "block size", "--page-size 32"),
        ("vllm", {"kv_events": False}, "KV events", "--kv-events-config"),
        ("sglang", {"kv_events": False}, "KV events", "--kv-events-config"),
        ("vllm", {"events_endpoint": "tcp://127.0.0.1:5557"}, "events socket", "tcp://*:5557"),
        ("vllm", {"replay": False}, "events replay", "--kv-events-config"),
        ("vllm", {"usage_details": False}, "usage details", "--enable-prompt-tokens-details"),
        ("sglang", {"usage_details": False}, "usage details", "--enable-cache-report"),
        ("vllm", {"sequences": 4}, "sequences at once", "--max-num-seqs 16"),
        ("sglang", {"sequences": 4}, "sequences at once", "--max-running-requests 16"),
        ("vllm", {"admitted": 0}, "queue limit", "--max-num-queued-reqs 20"),
        ("vllm", {"admitted": 10}, "queue limit", "--max-num-queued-reqs 20"),
        ("sglang", {"admitted": 0}, "queue limit", "--max-queued-requests 4"),
        ("vllm", {"priority": "off"}, "priority", "--scheduling-policy priority"),
        ("sglang", {"priority": "off"}, "priority", "--enable-priority-scheduling"),
        ("sglang", {"priority": "lower first"}, "priority", "without --schedule-low-priority-values-first"),
        ("vllm", {"lora": False}, "adapters", "--enable-lora"),
        ("vllm", {"lora_slots": 1}, "adapter slots", "--max-loras 2"),
        ("sglang", {"lora_slots": 1}, "adapter slots", "--max-loras-per-batch 2"),
        ("vllm", {"lora_rank": 4}, "adapter rank", "--max-lora-rank 8"),
        ("vllm", {"lora_held": 2}, "adapters held", "--max-cpu-loras 4"),
        ("sglang", {"lora_held": 2}, "adapters held", "--max-loaded-loras 4"),
        ("vllm", {"grace_s": 0}, "drain at SIGTERM", "--shutdown-timeout 120"),
    ],
)
def test_each_mismatch_is_one_finding_with_a_flag_the_engine_knows(engine: str, wrong: dict[str, object], what: str, flag: str) -> None:
    found = compare(engine, msgspec.structs.replace(good(engine), **wrong), NEEDS)
    (finding,) = [one for one in found if one.state != "ok"]
    assert (finding.state, finding.what) == ("wrong", what)
    assert flag in finding.text
    newest = max(version for name, version in manifests() if name == engine)
    for word in finding.text.split():
        if word.startswith("--"):
            assert word.rstrip(",;:") in manifest_for(engine, newest).flags


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_what_cannot_be_read_is_said_of_each_thing_and_is_no_mismatch(engine: str) -> None:
    findings = compare(engine, EngineFacts(), NEEDS)
    assert {finding.state for finding in findings} == {"unread"}
    assert all(finding.text.startswith("cannot be read: ") for finding in findings)
    assert len(findings) == (2 if engine == "llamacpp" else len(findings))


def test_an_engine_for_embeddings_needs_no_cache() -> None:
    without = msgspec.structs.replace(GOOD, kv_events=False, prefix_caching=False, usage_details=False, hash_algorithm="sha256")
    findings = compare("vllm", without, msgspec.structs.replace(NEEDS, generates=False))
    assert {finding.state for finding in findings} == {"ok"}


def test_an_engine_may_connect_to_a_gateway_that_listens() -> None:
    connects = msgspec.structs.replace(GOOD, events_endpoint="tcp://10.0.0.1:5557")
    findings = compare("vllm", connects, msgspec.structs.replace(NEEDS, gateway_binds=True))
    assert {finding.state for finding in findings} == {"ok"}


def test_nothing_in_particular_is_needed_where_nothing_is_said() -> None:
    assert all(finding.state == "ok" for finding in compare("vllm", GOOD, EngineNeeds()))


def test_needs_of_a_configuration_are_what_it_says() -> None:
    def needs(name: str) -> EngineNeeds:
        config = load(name)
        return needs_of(resolve(config, manifest_for(config.engine, config.version)))

    assert needs("vllm-cpu-test") == EngineNeeds(served_name="tiny", context=2048, block_size=32, sequences=16, lora_slots=2, lora_rank=8)
    assert needs("sglang-multi-lora") == EngineNeeds(
        served_name="llama-3.1-8b", context=16384, block_size=64, sequences=256, lora_slots=8, lora_rank=64
    )
    assert not needs("vllm-embeddings").generates
    assert not needs("sglang-embeddings").generates


DIGEST = "sha256:0123456789ab" + "0" * 52


def test_a_live_engine_proves_the_revision_of_its_pool_or_the_finding_says_what_it_serves() -> None:
    pinned = EngineNeeds(pinned=Pinned("m@v1", DIGEST))
    admitted = EngineNeeds(pinned=Pinned("m@v1", DIGEST, admit=True))

    def revision(names: tuple[str, ...] | None, needs: EngineNeeds) -> tuple[str, str]:
        facts = msgspec.structs.replace(GOOD, served_names=names)
        (finding,) = [one for one in compare("vllm", facts, needs) if one.what == "revision"]
        return finding.state, finding.text

    assert revision(("m", "m@sha256-0123456789ab"), pinned) == ("ok", "proves m@v1")
    state, text = revision(("m",), pinned)
    assert (state, "none of its names carries a digest" in text, "render --revision m@v1" in text) == ("wrong", True, True)
    assert revision(("m@sha256-ffffffffffff",), pinned)[0] == "wrong"
    assert revision(("m",), admitted)[0] == "note"
    assert revision(None, pinned)[0] == "unread"
    assert not [one for one in compare("vllm", GOOD, EngineNeeds()) if one.what == "revision"]


@pytest.mark.parametrize(("name", "served"), [("vllm-8b", "llama-3.1-8b"), ("sglang-8b", "llama-3.1-8b@sha256-0123456789ab")])
def test_an_engine_launched_with_a_digest_needs_to_prove_it(name: str, served: str) -> None:
    config = load(name)
    launch = resolve(config, manifest_for(config.engine, config.version), {"digest": DIGEST})
    assert launch.served_name == served
    wanted = needs_of(launch)
    assert wanted.pinned == Pinned("llama-3.1-8b", DIGEST)
    assert wanted.served_name == served
    assert any(word.endswith("@sha256-0123456789ab") for word in launch.command)
