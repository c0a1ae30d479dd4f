"""The production set-up: its settings, its policy with ten rules, its limits, and what is asked of it and answered."""

import json
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from bench.stored_tenants import store
from tenancy.limits import MAX_AMOUNT, MAX_RATE, Level, Limit, Meter, Scope, Window

MODEL: Final = "bench"
SIZES: Final = {"1k": 950, "16k": 16_000}
"""Bytes of a prompt; with its frame a request has about 1 and 16 KB."""

_SETTINGS: Final = """
data: {bind: "127.0.0.1:0"}
admin: {bind: "127.0.0.1:0"}
workers: 1
log: {access: LOGGED}
ledger: {enabled: LOGGED, fsync_ms: 50}
stores: {counters: "COUNTERS"}
pools:
  - name: chat
    model: bench
    backends:
"""
_CONDITIONS: Final = (
    'headers["x-team"] == "red"',
    'headers["x-team"] == "blue" && prompt_tokens > 2000',
    "prompt_tokens > 30000",
    "max_output_tokens > 4000",
    'project == "batch"',
    'user.startsWith("robot-")',
    'metadata.job == "nightly"',
    "tools && stream",
    'now.getHours("Europe/Berlin") == 25',
    'model.matches("^large[a-z]+$")',
)
"""One of each kind that operators write; none holds for the requests asked here, so all ten are looked at."""


CACHES: Final = ("off", "miss", "hit")
"""No answer cache; one that has none of the answers; one that has all of them."""

PRODUCTION, VALKEY, MINIMAL, BARE, TRACED, ALL_TRACED, TEXTS = SUBJECTS = (
    "tidegate",
    "tidegate, limits in Valkey",
    "tidegate, one backend, nothing on",
    "bare relay",
    "tidegate, traced",
    "tidegate, every request traced",
    "tidegate, traced, texts kept",
)
"""What is counted: the production set-up; the same with its counters in a Valkey on this host, as the embedded one is; a gateway with one
backend and no limits, rules, access log or ledger; the bare relay of `bench.overhead`, which does nothing but relay; and the
production set-up with traces, of the usual share of its requests and of all of them, that a receiver in another process takes; and that
with the usual share, whose tenants all let the request log keep their texts."""
EXPORTING: Final = frozenset({TRACED, ALL_TRACED, TEXTS})


CHAT, MESSAGES, RESPONSES, STORED = APIS = ("chat", "messages", "responses", "responses_stored")
"""In which API a caller asks: the engine's own, or one that the gateway translates; Responses that nobody keeps, and that are stored in
SQLite before their end is sent."""
EVENTS: Final = 64
"""Events with text of a streamed answer, as many as the plain one has tokens."""


class Case(msgspec.Struct, frozen=True):
    """One measurement."""

    size: str
    """One of `SIZES`."""
    cache: str = "off"
    """One of `CACHES`."""
    backends: int = 4
    tenants: int = 16
    """Each with one key and, but for `MINIMAL`, four limits; they ask in turn."""
    subject: str = PRODUCTION
    api: str = CHAT
    """One of `APIS`."""
    stream: bool = False
    exports: bool = False
    """Whether there is time for traces to be exported; engines are polled meanwhile, so that only figures with the same value compare."""

    @property
    def metric(self) -> str:
        """The name of its figure."""
        if self.api != CHAT or self.stream:
            return f"kinstr_{self.api}_{'stream' if self.stream else 'plain'}_{self.size}"
        name = f"kinstr_plain_{self.size}" if self.cache == "off" else f"kinstr_cache_{self.cache}_{self.size}"
        if self.subject in (MINIMAL, BARE):
            return name
        at_backends = "" if self.backends == Case("").backends else f"@{self.backends}_backends"
        return name + at_backends + ("" if self.tenants == Case("").tenants else f"@{self.tenants}_tenants")


def made(home: Path, case: Case, counters: str = "memory://", receiver: str = "") -> list[str]:
    """Write settings and policy into a folder and make its store; returns a key for each tenant.

    Args:
        counters: the address of the counter store.
        receiver: the endpoint that gets traces; empty for none.
    """
    plain = case.subject == MINIMAL
    count = 1 if plain else case.backends
    backends = "".join(f'      - {{id: e{at}, url: "http://127.0.0.1:{9001 + at}"}}\n' for at in range(count))
    file = home / "tidegate.yaml"
    written = _SETTINGS.lstrip().replace("LOGGED", str(not plain).lower()).replace("COUNTERS", counters)
    file.write_text(written + backends + _traces(case, receiver))
    (home / "policies").mkdir()
    policy = f'tenant: "*"\nmodels: [{{name: {MODEL}, pool: chat}}]\n'
    if not plain:
        rules = "".join(f"  - {{name: r{at}, if: '{condition}', then: {{priority: 0.5}}}}\n" for at, condition in enumerate(_CONDITIONS))
        policy += f"routing: predicted_latency\nrules:\n{rules}"
    if case.api == STORED:
        policy += "responses: {store: true}\n"
    if case.subject == TEXTS:
        policy += "request_log: {content: [prompt, answer]}\n"
    (home / "policies" / "default.yaml").write_text(policy + ("" if case.cache == "off" else "cache: {sampled: true}\n"))
    tenants = [f"t{at}" for at in range(case.tenants)]
    return store(file, tenants, [] if plain else [limit for tenant in tenants for limit in _limits(tenant)])


def _traces(case: Case, receiver: str) -> str:
    """The section of the settings that turns traces on."""
    if not receiver:
        return ""
    return f'traces: {{exporters: {{main: {{endpoint: "{receiver}"}}}}{", ratio: 1" if case.subject == ALL_TRACED else ""}}}\n'


def _limits(tenant: str) -> list[Limit]:
    """Four that are never reached."""
    scope = Scope(Level.TENANT, tenant)
    return [
        Limit(scope, Meter.REQUESTS, Window.MINUTE, MAX_RATE),
        Limit(scope, Meter.TOKENS, Window.MINUTE, MAX_RATE),
        Limit(scope, Meter.CONCURRENT_REQUESTS, Window.NOW, 100_000),
        Limit(scope, Meter.COST_NANOUSD, Window.MONTH, MAX_AMOUNT),
    ]


def requests(keys: list[str], case: Case) -> Iterator[bytes]:
    """One request after the other, without end: tenants in turn, every prompt a new one behind its first half, which is its tenant's; with
    the cache "hit", a tenant asks the same all the time."""
    dice, size = random.Random(7), SIZES[case.size]
    own = [_text(dice, size // 2) for _ in keys]
    same = _text(dice, size - size // 2)
    while True:
        for key, half in zip(keys, own, strict=True):
            path, asked = _asked(case, half, same if case.cache == "hit" else _text(dice, size - len(half)))
            body = json.dumps({"model": MODEL, **asked, **({"stream": True} if case.stream else {})}).encode()
            yield b"\r\n".join((
                b"POST %b HTTP/1.1" % path,
                b"host: gateway.example",
                b"accept: application/json",
                b"accept-encoding: gzip, deflate",
                b"user-agent: OpenAI/Python 1.99.0",
                b"content-type: application/json",
                b"x-stainless-lang: python",
                b"x-stainless-retry-count: 0",
                b"x-team: green",
                b"authorization: Bearer " + key.encode(),
                b"content-length: %d" % len(body),
                b"",
                body,
            ))  # fmt: skip


def _asked(case: Case, half: str, question: str) -> tuple[bytes, dict[str, object]]:
    """The path and the fields of a request in the case's API; the chat that it becomes is the same for all."""
    if case.api == MESSAGES:
        messages = [{"role": "user", "content": question}]
        return b"/v1/messages", {"system": half, "messages": messages, "max_tokens": 64, "temperature": 0.7}
    if case.api in (RESPONSES, STORED):
        fields = {"instructions": half, "input": question, "max_output_tokens": 64, "temperature": 0.7, "metadata": {"job": "none"}}
        return b"/v1/responses", {**fields, "store": case.api == STORED}
    messages = [{"role": "system", "content": half}, {"role": "user", "content": question}]
    return b"/v1/chat/completions", {"messages": messages, "max_tokens": 64, "temperature": 0.7, "metadata": {"job": "none"}}


def _text(dice: random.Random, size: int) -> str:
    """Words of two to nine letters."""
    words = ["".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 9))) for _ in range(size // 4)]
    return " ".join(words)[:size]


def _reply(document: object) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
    return b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(body), body)


def answer(size: int) -> bytes:
    """What an engine replies to a chat: 64 tokens."""
    tokens = size // 4
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _text(random.Random(8), 256), "refusal": None, "tool_calls": [], "reasoning": None},
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
    }
    usage = {"prompt_tokens": tokens, "total_tokens": tokens + 64, "completion_tokens": 64, "prompt_tokens_details": {"cached_tokens": 0}}
    whole = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion", "created": 1_800_000_000, "model": MODEL}
    return _reply({**whole, "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage, "prompt_logprobs": None})


def streamed_answer(size: int) -> list[bytes]:
    """What an engine replies to a streamed chat, read by read: the head with the first event, then an event each."""
    whole = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1_800_000_000, "model": MODEL}
    words = _text(random.Random(8), 512).split()[:EVENTS]
    deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant", "content": ""}, None)]
    deltas += [({"content": f" {word}"}, None if at < EVENTS else "stop") for at, word in enumerate(words, 1)]
    events: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None}]}
        for delta, reason in deltas
    ]
    tokens = size // 4
    counts = {"prompt_tokens": tokens, "total_tokens": tokens + EVENTS, "completion_tokens": EVENTS}
    events.append({"choices": [], "usage": counts})
    texts = [b"data: %b\n\n" % json.dumps({**whole, **event}, separators=(",", ":")).encode() for event in events] + [b"data: [DONE]\n\n"]
    reads = [b"%x\r\n%b\r\n" % (len(text), text) for text in texts]
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head + reads[0], *reads[1:-1], reads[-1] + b"0\r\n\r\n"]


QUESTIONS: Final = {
    b"GET /health ": _reply(b""),
    b"GET /v1/models ": _reply({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}),
    b"GET /metrics ": _reply(
        b'vllm:num_requests_running{engine="0"} 4.0\nvllm:num_requests_waiting{engine="0"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.1\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="27500",engine="0"} 1.0\n'
    ),
}
"""What an engine replies when it is polled. Its page has no more than is needed: what polls cost is not counted here, and a short page
leaves less of them in the difference."""
