"""What is stored of a Response: its input as items with ids, and what is shown of it later.

Items are stored in their full form, as `GET …/input_items` shows them, so that nothing has to be made of them again. A conversation that
goes on is the input and the output of each of its Responses, in order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tenancy.responses import StoredResponse

_PREFIXES: Final = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
}
"""By type of item: how the ids begin that it gets here."""


class _Output(msgspec.Struct, gc=False):
    output: list[Any]


_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[Any]).decode
_decode_raw_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_output = msgspec.json.Decoder(_Output).decode
_decode_id = msgspec.json.Decoder(dict[str, Any]).decode


def stored_items(sent: object, new_id: Callable[[], str]) -> bytes:
    """The input of a request as it is stored.

    Args:
        sent: a text, or items that were translated without a Fault.
        new_id: makes the digits of an id.
    """
    items: Any = [{"role": "user", "content": sent}] if type(sent) is str else sent
    return _encode([_whole(item, new_id) for item in items])


def _whole(item: dict[str, Any], new_id: Callable[[], str]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    whole = {**item, "type": kind}
    if type(item.get("id")) is not str:
        whole["id"] = _PREFIXES.get(kind, "item_") + new_id()
    if kind == "message":
        if type(content := item.get("content")) is str:
            part = {"type": "output_text", "text": content, "annotations": []} if item.get("role") == "assistant" else None
            whole["content"] = [part or {"type": "input_text", "text": content}]
        if item.get("status") is None:
            whole["status"] = "completed"
    return whole


def conversation(turns: Iterable[StoredResponse]) -> Iterator[Any]:
    """The items of a conversation in their order."""
    for turn in turns:
        yield from _decode_items(turn.items)
        yield from _decode_output(turn.response).output


def input_page(kept: bytes, after: str, limit: int, *, newest_first: bool) -> bytes | None:
    """A page of the input's items, as the API lists them; None where there is no item `after` which it could begin.

    Args:
        kept: as `stored_items` made them.
        after: the id of the item before the page; empty for the first page.
    """
    raws = _decode_raw_items(kept)
    items = [(raw, str(_decode_id(raw)["id"])) for raw in (reversed(raws) if newest_first else raws)]
    begin = 0
    if after:
        place = next((at for at, (_, name) in enumerate(items) if name == after), None)
        if place is None:
            return None
        begin = place + 1
    return _page(items[begin : begin + limit], more=begin + limit < len(items))


def _page(items: Sequence[tuple[msgspec.Raw, str]], *, more: bool) -> bytes:
    names = [name for _, name in items]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None, "has_more": more}
    return _encode({"object": "list", "data": [raw for raw, _ in items], **ends})


def deletion(response_id: str) -> bytes:
    """What says that a Response is deleted."""
    return _encode({"id": response_id, "object": "response", "deleted": True})
