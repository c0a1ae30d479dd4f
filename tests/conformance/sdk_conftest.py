"""Stands in for the `conftest.py` of an SDK's own tests: the same fixtures, against a gateway instead of the SDK's mock server.

It runs in the environment of the clients, where this project is not importable. `TEST_SDK` names the SDK.

The mock server knows any object that a test names. A gateway knows what was stored: before a request that names an object in its path, the
clients here store one, and name that one instead.
"""

import importlib
import json
import os
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

SDK, URL, KEY = (os.environ[name] for name in ("TEST_SDK", "TEST_API_BASE_URL", "TEST_API_KEY"))
SYNC, ASYNC = {"openai": ("OpenAI", "AsyncOpenAI"), "anthropic": ("Anthropic", "AsyncAnthropic")}[SDK]
sdk = importlib.import_module(SDK)

MODEL = "gpt-4o-mini"
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
LINE = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": ASKED})
FORM = "\r\n".join(
    (
        *("--b", 'content-disposition: form-data; name="purpose"', "", "batch"),
        *("--b", 'content-disposition: form-data; name="file"; filename="a.jsonl"', "", LINE, "--b--", ""),
    )
)
ITEM = {"type": "message", "role": "user", "content": "hi"}
UPLOAD = {"bytes": 12, "filename": "a.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}
KINDS = "files|batches|uploads|conversations|responses|chat/completions"
NAMED = re.compile(rf"(?P<before>/v1/(?P<kind>{KINDS})/)(?P<name>[^/?]+)(?P<after>.*)")


def posted(path: str, body: dict[str, Any] | str) -> dict[str, Any]:
    """What the gateway answers."""
    kind = "multipart/form-data; boundary=b" if isinstance(body, str) else "application/json"
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    request = urllib.request.Request(f"{URL}/{path}", data, {"authorization": f"Bearer {KEY}", "content-type": kind})
    with urllib.request.urlopen(request) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def stored(kind: str) -> str:
    """The id of a new object."""
    bodies: dict[str, dict[str, Any] | str] = {
        "files": FORM,
        "uploads": UPLOAD,
        "conversations": {},
        "responses": {"model": MODEL, "input": "hi", "store": True},
        "chat/completions": {**ASKED, "store": True},
    }
    if kind == "batches":
        bodies[kind] = {"input_file_id": stored("files"), "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str(posted(kind, bodies[kind])["id"])


def name_stored(request: Any) -> None:
    """Have a request name objects that are stored."""
    path = request.url.raw_path.decode()
    named = NAMED.fullmatch(path)
    if named is None or named["name"] in ("input_tokens", "compact"):
        return
    one, after = stored(named["kind"]), named["after"]
    if named["kind"] == "conversations" and after.startswith("/items/"):
        (item,) = posted(f"conversations/{one}/items", {"items": [ITEM]})["data"]
        after = f"/items/{item['id']}{after[after.find('?') :] if '?' in after else ''}"
    request.url = request.url.copy_with(raw_path=f"{named['before']}{one}{after}".encode())


async def name_stored_later(request: Any) -> None:
    """`name_stored` for a client of a loop. It blocks the loop, and not the gateway, which runs in another process."""
    name_stored(request)


def strict(param: Any) -> bool:
    """Whether replies are validated against the SDK's types. The transports of the suite (httpx, aiohttp) are the client's own matter."""
    return bool(param.get("strict", True)) if isinstance(param, dict) else bool(param)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    given = strict(getattr(request, "param", True))
    http = sdk.DefaultHttpxClient(event_hooks={"request": [name_stored] if SDK == "openai" else []})
    with getattr(sdk, SYNC)(base_url=URL, api_key=KEY, max_retries=0, http_client=http, _strict_response_validation=given) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    given = strict(getattr(request, "param", True))
    http = sdk.DefaultAsyncHttpxClient(event_hooks={"request": [name_stored_later] if SDK == "openai" else []})
    async with getattr(sdk, ASYNC)(base_url=URL, api_key=KEY, max_retries=0, http_client=http, _strict_response_validation=given) as made:
        yield made
