"""Whether a running engine meets the gateway's needs: facts compared with needs, one finding each, with the flag that corrects it. Pure."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from backends.dialects import DIALECTS
from backends.launch.engine_facts import EngineFacts
from backends.launch.resolve import Launch
from domain.model_revisions import Pinned

HASH_ALGORITHM: Final = "sha256_cbor"
"""The hash algorithm of vLLM that can be reproduced outside the engine; SGLang has only one."""


class EngineNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's needs of an engine. None or False means no need."""

    served_name: str | None = None
    context: int | None = None
    """Least context, tokens."""
    block_size: int | None = None
    """Exact size, tokens: a pool's prefix index has one."""
    sequences: int | None = None
    """Least number of concurrent sequences."""
    lora_slots: int | None = None
    lora_rank: int | None = None
    lora_held: int | None = None
    """Least number of adapters kept ready: a pool's `max_loras`."""
    gateway_binds: bool = False
    """Whether the gateway binds the events socket (a backend's `kv_events.bind`), so that the engine must connect."""
    pinned: Pinned | None = None
    """The revision that it must prove."""
    generates: bool = True
    """False for embeddings: they cache nothing, so they have no needs of caches."""


class EngineFinding(msgspec.Struct, frozen=True):
    """The result for one need."""

    what: str
    state: Literal["ok", "wrong", "unread", "note"]
    text: str
    """The engine's value; when it is wrong, also the needed value and the flag for it."""


def needs_of(launch: Launch) -> EngineNeeds:
    """The needs that an engine started from a launch configuration must meet."""
    flags = launch.flags
    vllm = launch.engine == "vllm"

    def number(name: str) -> int | None:
        return int(str(flags[name])) if name in flags else None

    adapters = flags.get("enable-lora") is True
    return EngineNeeds(
        served_name=launch.served_name,
        pinned=Pinned(launch.served_name.partition("@sha256-")[0], launch.digest) if launch.digest else None,
        context=number("max-model-len" if vllm else "context-length"),
        block_size=number("block-size" if vllm else "page-size"),
        sequences=number("max-num-seqs" if vllm else "max-running-requests"),
        lora_slots=number("max-loras" if vllm else "max-loras-per-batch") if adapters else None,
        lora_rank=number("max-lora-rank") if adapters else None,
        generates=flags.get("runner") != "pooling" and flags.get("is-embedding") is not True,
    )


def compare(engine: str, facts: EngineFacts, needs: EngineNeeds) -> list[EngineFinding]:
    """All findings, in a fixed order. Of engines other than vLLM and SGLang only the model list is known."""
    findings = [
        *_served_name(facts, needs, _flag(engine, "--served-model-name", "--served-model-name", "")),
        *_revision(facts, needs),
        *_context(engine, facts, needs),
    ]
    if engine not in ("vllm", "sglang"):
        return findings
    if needs.generates:
        findings += [*_cache(engine, facts, needs), *_events(engine, facts, needs)]
        findings.append(_usage(engine, facts))
    findings += [*_sequences(engine, facts, needs), _admission(engine, facts), _priority(engine, facts), *_lora(engine, facts, needs)]
    if engine == "vllm":
        findings.append(_grace(facts))
    return findings


def _finding(what: str, value: object, good: bool, is_now: str, otherwise: str, unread: str) -> EngineFinding:
    """The finding for a value: `otherwise` names the need and the flag, `unread` says why the value is unknown and how to learn it."""
    if value is None:
        return EngineFinding(what, "unread", f"cannot be read: {unread}")
    return EngineFinding(what, "ok", is_now) if good else EngineFinding(what, "wrong", f"{is_now}; {otherwise}")


def _flag(engine: str, vllm: str, sglang: str, other: str) -> str:
    return {"vllm": vllm, "sglang": sglang}.get(engine, other)


def _unread(engine: str) -> str:
    if engine == "vllm":
        return "vLLM tells it in /server_info only, which needs VLLM_SERVER_DEV_MODE=1 (not in production); look at its command line"
    return "/server_info did not answer"


def _served_name(facts: EngineFacts, needs: EngineNeeds, flag: str) -> Iterator[EngineFinding]:
    if needs.served_name is None:
        return
    names = facts.served_names
    mend = f"start it with {flag} {needs.served_name}" if flag else "rename the pool's `model`"
    yield _finding(
        "served name",
        names,
        needs.served_name in (names or ()),
        f"serves {', '.join(names or ()) or 'nothing'}",
        f"the pool asks for {needs.served_name}: {mend}",
        "/v1/models gave no list",
    )


def _revision(facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    """Whether a served name proves the revision that the pool is pinned to."""
    if needs.pinned is None:
        return
    doubt = needs.pinned.unproven(facts.served_names or ())
    reference = needs.pinned.reference
    if doubt and needs.pinned.admit:
        yield EngineFinding("revision", "note", f"{doubt}; its pool admits it all the same (unproven: admit)")
        return
    mend = f"start it as `tidegate engine render --revision {reference}` says"
    shown = doubt or f"proves {reference}"
    yield _finding("revision", facts.served_names, not doubt, shown, mend, "/v1/models gave no list")


def _context(engine: str, facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    if needs.context is None:
        return
    flag = _flag(engine, "--max-model-len", "--context-length", "its own setting for the context:")
    yield _finding(
        "context length",
        facts.context,
        (facts.context or 0) >= (needs.context or 0),
        f"{facts.context} tokens",
        f"{needs.context} are needed: {flag} {needs.context}",
        "/v1/models says no max_model_len",
    )


def _cache(engine: str, facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    unread = "vllm:cache_config_info is not in /metrics" if engine == "vllm" else _unread(engine)
    mend = _flag(engine, "start it with --enable-prefix-caching", "start it without --disable-radix-cache", "")
    on = facts.prefix_caching
    yield _finding("prefix cache", on, on is True, "on" if on else "off", f"prefixes are computed again each time: {mend}", unread)
    if engine == "vllm":
        algorithm = facts.hash_algorithm
        otherwise = f"nobody outside the process can reproduce it: --prefix-caching-hash-algo {HASH_ALGORITHM}"
        yield _finding("hash algorithm", algorithm, algorithm == HASH_ALGORITHM, str(algorithm), otherwise, unread)
    flag = _flag(engine, "--block-size", "--page-size", "")
    yield _finding(
        "block size",
        facts.block_size,
        needs.block_size in (None, facts.block_size),
        f"{facts.block_size} tokens",
        f"{needs.block_size} is needed, as everywhere in the pool: {flag} {needs.block_size}",
        unread,
    )


def _events(engine: str, facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    unread = "/kv_event_sources did not answer" if engine == "vllm" else _unread(engine)
    first = '"enable_kv_cache_events":true,' if engine == "vllm" else ""
    mend = f'--kv-events-config \'{{{first}"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657"}}\''
    on = facts.kv_events
    now = f"published at {facts.events_endpoint}" if on else "off"
    yield _finding("KV events", on, on is True, now, f"the gateway cannot know what is cached: {mend}", unread)
    if not on:
        return
    if engine == "vllm" and not needs.gateway_binds:
        endpoint = facts.events_endpoint or ""
        binds = "*" in endpoint or "::" in endpoint or endpoint.startswith("ipc://")
        otherwise = f"vLLM connects to {endpoint} instead of listening there: give a wildcard (tcp://*:5557) or an ipc:// endpoint"
        yield _finding("events socket", endpoint, binds, "bound" if binds else "not bound", otherwise, unread)
    replay = facts.replay
    otherwise = "a lost message costs the whole index of this engine: add replay_endpoint to --kv-events-config"
    yield _finding("events replay", replay, replay is True, "on" if replay else "off", otherwise, unread)


def _usage(engine: str, facts: EngineFacts) -> EngineFinding:
    on = facts.usage_details
    flag = _flag(engine, "--enable-prompt-tokens-details", "--enable-cache-report", "")
    unread = "no answer of one token was asked for, or none came" if engine == "vllm" else _unread(engine)
    now = "usage says cached tokens" if on else "usage does not say cached tokens"
    return _finding("usage details", on, on is True, now, f"a prefix hit cannot be told from none: {flag}", unread)


def _sequences(engine: str, facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    if needs.sequences is None:
        return
    flag = _flag(engine, "--max-num-seqs", "--max-running-requests", "")
    enough = (facts.sequences or 0) >= needs.sequences
    otherwise = f"{needs.sequences} are needed: {flag} {needs.sequences}"
    yield _finding("sequences at once", facts.sequences, enough, str(facts.sequences), otherwise, _unread(engine))


def _admission(engine: str, facts: EngineFacts) -> EngineFinding:
    """The engine's queue limit. Without one, requests pile up where the gateway can neither reorder nor withdraw them."""
    limit = facts.admitted
    running = facts.sequences or 0
    flag = _flag(engine, "--max-num-queued-reqs", "--max-queued-requests", "")
    example = max(1, running // 4) + (running if engine == "vllm" else 0)
    if limit == 0 or limit is None:
        now = "no limit"
        otherwise = f"they pile up where nobody can reorder them: {flag} {example}"
    else:
        now = f"{limit} requests"
        otherwise = f"fewer than the {running} it can run at once, since running ones count: {flag} {example}"
    return _finding("queue limit", limit, bool(limit) and (limit or 0) >= running, now, otherwise, _unread(engine))


def _priority(engine: str, facts: EngineFacts) -> EngineFinding:
    """The priority order, which must be the dialect's, because the gateway writes numbers in that order."""
    priority = DIALECTS[engine].priority
    wanted = f"{priority.sooner} first" if priority is not None else ""
    now = facts.priority or ""
    mend = priority.needs if priority is not None and now == "off" else "start it without --schedule-low-priority-values-first"
    otherwise = f"the gateway writes {engine}'s priorities {wanted}: {mend}"
    return _finding("priority", facts.priority, now == wanted, now, otherwise, _unread(engine))


def _lora(engine: str, facts: EngineFacts, needs: EngineNeeds) -> Iterator[EngineFinding]:
    parts = (
        ("adapter slots", needs.lora_slots, facts.lora_slots, _flag(engine, "--max-loras", "--max-loras-per-batch", "")),
        ("adapter rank", needs.lora_rank, facts.lora_rank, "--max-lora-rank"),
        ("adapters held", needs.lora_held, facts.lora_held, _flag(engine, "--max-cpu-loras", "--max-loaded-loras", "")),
    )
    wanted = [part for part in parts if part[1] is not None]
    if not wanted:
        return
    if facts.lora is not None:
        mend = "adapters cannot be loaded: --enable-lora " + " ".join(f"{flag} {need}" for _, need, _, flag in wanted)
        yield _finding("adapters", facts.lora, facts.lora is True, "on" if facts.lora else "off", mend, "")
        if not facts.lora:
            return
    for what, need, value, flag in wanted:
        enough = (value or 0) >= (need or 0)
        yield _finding(what, value, enough, str(value), f"{need} are needed: {flag} {need}", _unread(engine))


def _grace(facts: EngineFacts) -> EngineFinding:
    grace = facts.grace_s
    otherwise = "streams in flight at SIGTERM get neither data nor an end: --shutdown-timeout 120"
    return _finding("drain at SIGTERM", grace, bool(grace), f"{grace} s", otherwise, _unread("vllm"))
