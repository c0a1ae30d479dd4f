"""Our own error replies, byte for byte: a change here is a change that callers see."""

import json
from pathlib import Path

import pytest

from domain.faults import Fault, Kind, Retry
from gateway.http.faults import render, render_event

GOLDEN: dict[str, dict[str, object]] = json.loads((Path(__file__).parent / "golden" / "fault_bodies.json").read_text("utf-8"))


def on_the_wire(kind: Kind) -> dict[str, object]:
    fault = Fault(kind, "Said so.", param="messages[0]", retry=Retry(should=True, after_s=1.5))
    rendered = render(fault, "req-1")
    return {
        "status": rendered.status,
        "headers": [f"{name.decode()}: {value.decode()}" for name, value in rendered.headers],
        "body": rendered.body.decode(),
        "event": render_event(fault, "req-1").decode(),
    }


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.CLIENT_GONE])
def test_bytes(kind: Kind) -> None:
    assert on_the_wire(kind) == GOLDEN[kind.value]


def test_no_kind_is_missing() -> None:
    assert set(GOLDEN) == {kind.value for kind in Kind} - {"client_gone"}
