"""The replies of vLLM's and SGLang's OpenAI servers, as recorded from vLLM 0.32 and SGLang 0.5.23: bodies, chunks, errors, metrics.

The text in them is deterministic: the same prompt, model and seed always give the same words, and one word is one token (`words`).
The tokenizer (`tokens_of`) cuts text into pieces of at most four characters that never span white space (about what byte-pair encodings
average on English), and numbers each piece by a hash. It is stable across processes, so prefixes stay prefixes.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

encode = msgspec.json.Encoder().encode


SIMULATED: Final = {
    "kv_kept_requests": "simengine_kv_kept_requests",
    "kv_kept_tokens": "simengine_kv_kept_tokens",
    "kv_fetched": "simengine_kv_fetched_total",
    "kv_expired": "simengine_kv_expired_total",
    "kv_recomputed": "simengine_kv_recomputed_total",
}
"""Series that only the simulated engine has: KV kept for other engines, and whether it was fetched."""


ID_PREFIXES: Final = {"chat": "chatcmpl-", "text": "cmpl-"}
"""The beginnings of vLLM's ids, by kind; those of other kinds begin with the kind."""


class Ids(msgspec.Struct, frozen=True):
    """The members that every part of one answer repeats."""

    id: str
    created: int
    model: str


def ids(dialect: str, request_id: str, kind: str, created: int, model: str) -> Ids:
    """The members for one answer: vLLM puts a prefix before the request's id; SGLang's id has none."""
    prefix = ID_PREFIXES.get(kind, f"{kind}-") if dialect == "vllm" else ""
    return Ids(prefix + request_id, created, model)


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_chunk(head: Ids, index: int, delta: dict[str, Any], finish: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """One chunk of a chat stream."""
    choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model, "choices": [choice]}


def text_chunk(head: Ids, index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """One chunk of a completions stream."""
    choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
    return {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model, "choices": [choice]}


def usage_chunk(head: Ids, kind: str, totals: dict[str, Any]) -> dict[str, Any]:
    """The last chunk before [DONE], when the request asks for usage."""
    shape = "chat.completion.chunk" if kind == "chat" else "text_completion"
    return {"id": head.id, "object": shape, "created": head.created, "model": head.model, "choices": [], "usage": totals}


def plain_choice(index: int, said: dict[str, Any], finish: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """One choice of a reply that is not streamed; `said` has its `message` or its `text`."""
    return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}


def plain(head: Ids, kind: str, choices: list[dict[str, Any]], totals: dict[str, Any] | None) -> dict[str, Any]:
    """A reply that is not streamed."""
    shape = "chat.completion" if kind == "chat" else "text_completion"
    body = {"id": head.id, "object": shape, "created": head.created, "model": head.model, "choices": choices}
    return body if totals is None else {**body, "usage": totals}


def error(dialect: str, status: int, message: str, kind: str, param: str | None = None) -> bytes:
    """An error body: nested in vLLM, flat in SGLang; the code is a number in both."""
    inner = {"message": message, "type": kind, "param": param, "code": status}
    return encode({"error": inner} if dialect == "vllm" else {"object": "error", **inner})


def metrics(dialect: str, model: str, values: dict[str, float], block_size: int, blocks: int, started: float) -> bytes:
    """Prometheus text with the series that routers read."""
    if dialect == "vllm":
        label = f'engine="0",model_name="{model}"'
        names = {
            "running": "vllm:num_requests_running",
            "waiting": "vllm:num_requests_waiting",
            "kv_usage": "vllm:kv_cache_usage_perc",
            "prefix_queries": "vllm:prefix_cache_queries_total",
            "prefix_hits": "vllm:prefix_cache_hits_total",
            "preemptions": "vllm:num_preemptions_total",
            "prompt_tokens": "vllm:prompt_tokens_total",
            "generated_tokens": "vllm:generation_tokens_total",
            "finished": "vllm:request_success_total",
        }
        # queries and hits are counted when a prompt is scheduled, so that the difference never falls
        computed = float(values["prefix_queries"] - values["prefix_hits"] - values["handed_tokens"])
        info = (
            f'vllm:prompt_tokens_by_source_total{{{label},source="local_compute"}} {computed}\n'
            f'vllm:cache_config_info{{block_size="{block_size}",num_gpu_blocks="{blocks}",enable_prefix_caching="True",engine="0"}} 1.0\n'
        )
    else:
        label = f'engine_type="unified",model_name="{model}",priority=""'
        names = {
            "running": "sglang:num_running_reqs",
            "waiting": "sglang:num_queue_reqs",
            "kv_usage": "sglang:token_usage",
            "kv_used_tokens": "sglang:num_used_tokens",
            "kv_tokens": "sglang:max_total_num_tokens",
            "hit_rate": "sglang:cache_hit_rate",
            "prompt_tokens": "sglang:prompt_tokens_total",
            "generated_tokens": "sglang:generation_tokens_total",
            "prefix_hits": "sglang:cached_tokens_total",
            "aborted": "sglang:num_aborted_requests_total",
            "rooms_waiting": "sglang:num_prefill_bootstrap_queue_reqs",
            "kv_kept_requests": "sglang:num_prefill_inflight_queue_reqs",
        }
        info = f"sglang:page_size{{{label}}} {float(block_size)}\n"
    lines = [f"{name}{{{label}}} {float(values[key])}\n" for key, name in names.items()]
    lines += [f"{name} {float(values[key])}\n" for key, name in SIMULATED.items()]
    return ("".join(lines) + info + f"process_start_time_seconds {started}\n").encode()


VOCABULARY: Final = 50_000

WORDS: Final = [
    "the",
    "tide",
    "turns",
    "and",
    "the",
    "gate",
    "opens",
    "while",
    "water",
    "finds",
    "its",
    "level",
    "past",
    "every",
    "stone",
    "harbour",
    "lights",
    "count",
    "ships",
    "that",
    "come",
    "home",
    "before",
    "dawn",
    "a",
    "careful",
    "pilot",
    "reads",
    "wind",
    "depth",
    "and",
    "current",
    "then",
    "waits",
    "patient",
    "engines",
    "hum",
    "below",
    "deck",
    "as",
    "ropes",
    "hold",
    "fast",
    "until",
    "morning",
    "brings",
    "rain",
    "sun",
    "salt",
    "gulls",
    "nets",
    "songs",
    "bread",
    "stories",
    "maps",
    "bells",
    "clocks",
    "and",
    "quiet",
    "work",
    "for",
    "many",
    "hands",
]

_PIECE: Final = re.compile(r"\s*\S{1,4}|\s+")


def pieces_of(text: str) -> list[str]:
    """The texts of the tokens of a text."""
    return _PIECE.findall(text)


def tokens_of(text: str) -> list[int]:
    """The token ids of a text."""
    return [zlib.crc32(piece.encode()) % VOCABULARY for piece in pieces_of(text)]


def answer_tokens(text: str) -> list[int]:
    """The token ids of a text that `words` made: one for each word."""
    return [zlib.crc32(word.encode()) % VOCABULARY for word in re.findall(r" ?[^ ]+", text)]


def words(prompt: list[int], model: str, seed: int) -> Iterator[str]:
    """An endless answer, one token at a time; every word but the first begins with a space."""
    state = _digest(prompt, model, seed)
    first = True
    while True:
        state = hashlib.blake2b(state, digest_size=16).digest()
        word = WORDS[int.from_bytes(state[:4]) % len(WORDS)]
        yield word if first else f" {word}"
        first = False


def natural_length(prompt: list[int], model: str, seed: int) -> int:
    """The number of tokens of the answer when no limit cuts it: 16 to 256."""
    return 16 + int.from_bytes(_digest(prompt, model, seed)[:4]) % 241


def embedding(text: str, dimensions: int) -> list[float]:
    """A unit vector for the text; equal texts have equal vectors."""
    raw = hashlib.shake_128(text.encode()).digest(2 * dimensions)
    values = [int.from_bytes(raw[i : i + 2]) / 32768 - 1 for i in range(0, len(raw), 2)]
    norm = sum(v * v for v in values) ** 0.5 or 1.0
    return [v / norm for v in values]


def random_seed(prompt: list[int], model: str, seed: int) -> bytes:
    """A seed that is the same for the same prompt, model and seed."""
    return _digest(prompt, f"{model}\0", seed)


def _digest(prompt: list[int], model: str, seed: int) -> bytes:
    head = hashlib.blake2b(f"{model}\0{seed}\0".encode(), digest_size=16)
    head.update(b"".join(token.to_bytes(4, "little") for token in prompt))
    return head.digest()
