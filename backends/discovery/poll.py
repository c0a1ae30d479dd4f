"""Asks engines whether they are there and serve the model they should. Control plane: httpx, off the request path.

What progress-based health makes of it joins later; a poll alone says only "up" or why not.
"""

from typing import Final

import httpx
import msgspec

from backends.dialects import Dialect

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def reason_down(client: httpx.AsyncClient, url: str, dialect: Dialect, model: str, authorization: str | None) -> str:
    """Poll one backend. Returns "" when it is up and serves `model`, otherwise why it is not, in words for an operator."""
    headers = {"authorization": authorization} if authorization else {}
    try:
        health = await client.get(url + dialect.health_path, headers=headers, timeout=POLL_TIMEOUT_S)
        if health.status_code != 200:
            return f"{dialect.health_path} answers {health.status_code}"
        listed = await client.get(url + dialect.models_path, headers=headers, timeout=POLL_TIMEOUT_S)
        if listed.status_code != 200:
            return f"{dialect.models_path} answers {listed.status_code}"
        if len(listed.content) > MAX_LIST_BYTES:
            return f"{dialect.models_path} answers more than {MAX_LIST_BYTES} bytes"
        names = [m.id for m in msgspec.json.decode(listed.content, type=_Models).data]
    except httpx.TimeoutException:
        return f"no answer within {POLL_TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"[:200]
    except msgspec.DecodeError:
        return f"{dialect.models_path} does not answer with a model list"
    if model not in names:
        return f"serves {', '.join(names[:5]) or 'no model'}, not {model}"
    return ""
