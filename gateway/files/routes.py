"""The routes of stored objects, by path and method: `/v1/files`, `/v1/uploads` and `/v1/batches`."""

from collections.abc import Awaitable, Callable
from typing import Final

from domain.faults import Fault, Kind
from gateway.batches.routes import cancel_batch, create_batch, list_batches, show_batch
from gateway.deps import Deps
from gateway.files.file_routes import create_file, delete_file, list_files, send_content, show_file
from gateway.files.service import BATCHES, FILES, UPLOADS
from gateway.files.upload_routes import add_part, cancel_upload, complete_upload, create_upload
from gateway.http.edge.exchange import Exchange
from gateway.story import Story

Handler = Callable[..., Awaitable[None]]

STORED: Final = (FILES, UPLOADS, BATCHES)
"""The beginnings of the paths of these routes."""

_ROUTES: Final[dict[tuple[str, ...], dict[str, Handler]]] = {
    (FILES,): {"GET": list_files, "POST": create_file},
    (FILES, "{id}"): {"GET": show_file, "DELETE": delete_file},
    (FILES, "{id}", "content"): {"GET": send_content},
    (UPLOADS,): {"POST": create_upload},
    (UPLOADS, "{id}", "parts"): {"POST": add_part},
    (UPLOADS, "{id}", "complete"): {"POST": complete_upload},
    (UPLOADS, "{id}", "cancel"): {"POST": cancel_upload},
    (BATCHES,): {"GET": list_batches, "POST": create_batch},
    (BATCHES, "{id}"): {"GET": show_batch},
    (BATCHES, "{id}", "cancel"): {"POST": cancel_batch},
}


_STREAMED: Final = frozenset({(FILES,), (UPLOADS, "{id}", "parts")})


def is_stored(path: str) -> bool:
    """Whether a path is one of these routes."""
    return _form_of(path) is not None


def streams_body(path: str, method: str) -> bool:
    """Whether a route stores its body as it arrives, however long it is."""
    found = _form_of(path)
    return method == "POST" and found is not None and found[0] in _STREAMED


def stored_handler(path: str, method: str, deps: Deps) -> Callable[[Exchange, Story], Awaitable[None]]:
    """The handler of a request for one of these routes.

    Raises:
        Fault: METHOD_NOT_ALLOWED.
    """
    found = _form_of(path)
    assert found is not None, "the caller has asked `is_stored`"
    form, object_id = found
    handlers = _ROUTES[form]
    handler = handlers.get(method)
    if handler is None:
        allowed = ", ".join(handlers)
        raise Fault(Kind.METHOD_NOT_ALLOWED, f"Only {allowed} is allowed here.", detail=allowed)
    return lambda exchange, story: handler(exchange, story, deps, *((object_id,) if object_id else ()))


def _form_of(path: str) -> tuple[tuple[str, ...], str] | None:
    """The key of `_ROUTES` for a path, and the id in it; None for any other path."""
    for begin in STORED:
        if path == begin:
            return (begin,), ""
        if path.startswith(f"{begin}/"):
            object_id, _, rest = path.removeprefix(f"{begin}/").partition("/")
            form = (begin, "{id}", rest) if rest else (begin, "{id}")
            return (form, object_id) if object_id and form in _ROUTES else None
    return None
