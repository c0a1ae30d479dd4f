"""`python -m bench.overhead.micro`: microseconds of single functions on the hot path, best of several repetitions. Whole requests are
counted by `python -m bench.instructions`."""

import argparse
import asyncio
import gc
import json
import time
import timeit
from collections.abc import Callable
from pathlib import Path

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from backends.dialects.vllm import SIGNALS
from backends.sse import EventSplitter
from bench.results_file import Row, machine, refresh, table, write_rows
from domain.ask import Endpoint
from domain.identity import ProjectId, TenantId
from gateway.http.edge.reply_document import plain_chunk
from gateway.http.edge.taps import StreamTap
from gateway.http.openai import interpret
from gateway.http.openai.json_guard import parse_object
from gateway.story import AttemptFacts, Story
from gateway.telemetry.metrics import Metrics
from tenancy.jwt import IssuerRules, Mapped, Tokens
from tenancy.jwt_keys import key_set
from tenancy.keys import ENTROPY_BYTES, KeyRecord, KeyRing, Pepper, digest_of, mint

PIECES = 20
VLLM_PAGE = Path(__file__).parents[2] / "tests" / "wire" / "engine_metrics" / "vllm-0.32.0.txt"
EVENT = (
    b'data: {"id":"chatcmpl-gw-1","object":"chat.completion.chunk","created":1795225442,"model":"tiny","choices":[{"index":0,'
    b'"delta":{"content":" gate"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)


def _search(event: bytes) -> bool:
    """What a byte-level tap has to look for in every event."""
    return (
        event.endswith(b"\n\n")
        and event.count(b"\n\n") == 1
        and b'"finish_reason":"' not in event
        and b'"usage":{' not in event
        and b'"error"' not in event
    )


def _tokens() -> tuple[Tokens, str, str]:
    """A verifier, a token it has seen, and another."""
    private = ec.generate_private_key(ec.SECP256R1())
    rules = IssuerRules("https://i", frozenset({"a"}), frozenset({"ES256"}), Mapped(fixed="t"), Mapped(fixed="default"))
    tokens = Tokens([rules])
    entry = ECAlgorithm.to_jwk(private.public_key(), as_dict=True)
    tokens.take_keys("https://i", key_set(json.dumps({"keys": [entry]}).encode(), rules.algorithms))
    claims = {"iss": "https://i", "aud": "a", "iat": 1, "exp": 600, "groups": ["g" * 20] * 20}
    token, unseen = (jwt.encode(claims | {"sub": sub}, private, algorithm="ES256") for sub in ("in-use", "verified-anew"))
    tokens.verify(token, 1.0)
    return tokens, token, unseen


def cases() -> dict[str, Callable[[], object]]:
    """Name to what is timed. Call it inside a running loop."""

    def body(size: int) -> bytes:
        return json.dumps({"model": "m", "messages": [{"role": "user", "content": "a" * size}]}, separators=(",", ":")).encode()

    small, large = body(950), body(16_000)
    pepper = Pepper("k", b"p" * 32)
    ours, stranger = mint("live", b"\1" * ENTROPY_BYTES), mint("live", b"\2" * ENTROPY_BYTES)
    ring = KeyRing([KeyRecord(ours.id, TenantId("t"), ProjectId("default"), "k", (digest_of(pepper.secret, ours.secret),))], pepper)
    tokens, token, unseen = _tokens()
    tap = StreamTap(AttemptFacts(), time.monotonic, choices=1, include_usage=False)
    tap.feed(EVENT)
    splitter = EventSplitter()
    splitter.feed(EVENT)
    metrics, record = Metrics(["m"]), Story("r", 0.0, 0.0, 0.0).close(1.0)
    payload = EVENT[6:-2]
    read_again = SIGNALS.reader()
    page = VLLM_PAGE.read_bytes()
    page += b"".join(b'vllm:some_latency_bucket{engine="0",le="%d",model_name="m"} 0.0\n' % n for n in range((67_000 - len(page)) // 66))
    return {
        "search one event for what decides (bytes)": lambda: _search(EVENT),
        "decode one event, typed": lambda: plain_chunk(payload),
        "split one event off the stream": lambda: splitter.lone(EVENT),
        "whole stream tap, one event": lambda: tap.feed(EVENT),
        "json guard, 1 KB": lambda: parse_object(small),
        "json guard, 16 KB": lambda: parse_object(large),
        "interpret, 1 KB": lambda: interpret(Endpoint.CHAT, small),
        "interpret, 16 KB": lambda: interpret(Endpoint.CHAT, large),
        "authenticate, key in use": lambda: ring.authenticate(ours.text, 0.0),
        "authenticate, unknown key": lambda: ring.authenticate(stranger.text, 0.0),
        "authenticate, token in use": lambda: tokens.remembered(token, 1.0),
        "authenticate, token verified (ES256)": lambda: tokens.verify(unseen, 1.0),
        "metrics, one record": lambda: metrics.observe(record),
        "signals of a vLLM metrics page, 67 KB, searched": lambda: SIGNALS.read(page, 0.0),
        "signals of a vLLM metrics page, 67 KB, places known": lambda: read_again(page, 0.0),
    }


def main() -> None:
    """Time every case and refresh the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=7)
    asyncio.run(_measure(parser.parse_args()))


async def _measure(given: argparse.Namespace) -> None:
    rows = []
    timed = cases()
    gc.collect()
    gc.freeze()  # as a worker does
    gc.set_threshold(20_000, 20, 50)
    for name, function in timed.items():
        number, _ = timeit.Timer(function).autorange()
        number = max(1, number // PIECES)  # a piece of 10 ms finds a quiet moment where one of 0.2 s does not
        best = min(timeit.repeat(function, number=number, repeat=given.repeat * PIECES)) / number
        rows.append(Row(metric="best_us", subject=name, value=round(best * 1e6, 3), unit="us", n=given.repeat * PIECES))
        print(f"{best * 1e6:8.3f} us  {name}")
    write_rows("micro", rows)
    refresh("micro", f"`python -m bench.overhead.micro`, {machine()}, best of {given.repeat * PIECES}.\n\n{table(rows, ['best_us'], '')}")


if __name__ == "__main__":
    main()
