"""Requests to the OpenAI API and what it answered, as other projects recorded them, reduced to what the gateway serves.

`python -m tests.recorded_exchanges FILE` reduces a file of recordings and writes `tests/recorded_exchanges.jsonl.gz`. The file in the
repository was made of the test recordings of github.com/envoyproxy/ai-gateway at c217da8a539570ba3f6014a60c2687c29a945f1f and
github.com/pydantic/pydantic-ai at 4fda38988f2939fa6ea9cdefcf120693e10ef491; their licences stand beside it. A reduced exchange names one
model, `MODEL`, in request and reply, has nothing but the content type of the reply's headers, and the beginning of what is encrypted; long
exchanges are left out, and so are those with the same request as another one, and those about `LEFT_OUT`.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

FILE: Final = Path(__file__).with_name("recorded_exchanges.jsonl.gz")
MODEL: Final = "sim"
PASSED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
"""Routes whose requests and replies pass the gateway untranslated."""
RESPONSES: Final = "/v1/responses"
MOST: Final = 15_000
"""Characters of request and reply together."""
LEFT_OUT: Final = re.compile("moderation", re.IGNORECASE)
"""The server's own moderation, whose recordings quote people in distress."""
_CHANGES: Final = (
    (re.compile(r'("model":\s*)"[^"]*"'), rf'\1"{MODEL}"'),
    (re.compile(r'("encrypted_content":\s*"[^"]{64})[^"]*"'), r'\1"'),
)


class Exchange(msgspec.Struct, frozen=True):
    """A recorded request and its reply."""

    name: str
    path: str
    request: str
    """JSON."""
    status: int
    kind: str
    """The content type of the reply."""
    reply: str
    """As it was sent: JSON or server-sent events."""

    @property
    def asked(self) -> dict[str, Any]:
        """The request's members."""
        members: dict[str, Any] = json.loads(self.request)
        return members

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of a streamed reply."""
        return [json.loads(line.removeprefix("data: ")) for line in self.reply.splitlines() if line.startswith("data: {")]

    @property
    def streamed(self) -> bool:
        """Whether the reply is a stream."""
        return self.kind.startswith("text/event-stream")


def exchanges(*paths: str) -> list[Exchange]:
    """The exchanges of these paths."""
    decode = msgspec.json.Decoder(Exchange).decode
    return [one for one in map(decode, gzip.decompress(FILE.read_bytes()).splitlines()) if one.path in paths]


def reduced(recordings: Iterable[dict[str, Any]]) -> Iterator[Exchange]:
    """Exchanges of `recordings`, whose members are `source`, `name`, `path`, `request`, `status`, `headers` and `response`."""
    seen: set[tuple[str, str]] = set()
    for one in recordings:
        request, reply = _changed(one["request"]), _changed(one["response"])
        unfit = one["path"] not in {*PASSED, RESPONSES} or len(request) + len(reply) > MOST or LEFT_OUT.search(one["name"])
        if unfit or (one["path"], request) in seen:
            continue
        seen.add((one["path"], request))
        name = f"{one['source'].partition('/')[2]}: {one['name']}"
        yield Exchange(name, one["path"], request, one["status"], one["headers"].get("content-type", "application/json"), reply)


def _changed(text: str) -> str:
    for pattern, by in _CHANGES:
        text = pattern.sub(by, text)
    return text


if __name__ == "__main__":
    lines = gzip.decompress(Path(sys.argv[1]).read_bytes()).splitlines()
    body = b"".join(msgspec.json.encode(one) + b"\n" for one in reduced(map(json.loads, lines)))
    FILE.write_bytes(gzip.compress(body, 9, mtime=0))
