"""Stands in for the `conftest.py` of an SDK's own tests: the same fixtures, against a gateway instead of the SDK's mock server.

It runs in the environment of the clients, where this project is not importable. `TEST_SDK` names the SDK.
"""

import importlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

SDK, URL, KEY = (os.environ[name] for name in ("TEST_SDK", "TEST_API_BASE_URL", "TEST_API_KEY"))
SYNC, ASYNC = {"openai": ("OpenAI", "AsyncOpenAI"), "anthropic": ("Anthropic", "AsyncAnthropic")}[SDK]
sdk = importlib.import_module(SDK)


def strict(param: Any) -> bool:
    """Whether replies are validated against the SDK's types. The transports of the suite (httpx, aiohttp) are the client's own matter."""
    return bool(param.get("strict", True)) if isinstance(param, dict) else bool(param)


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    given = strict(getattr(request, "param", True))
    with getattr(sdk, SYNC)(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=given) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def async_client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    given = strict(getattr(request, "param", True))
    async with getattr(sdk, ASYNC)(base_url=URL, api_key=KEY, max_retries=0, _strict_response_validation=given) as made:
        yield made
