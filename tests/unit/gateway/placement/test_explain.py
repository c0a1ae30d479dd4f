from pathlib import Path

import msgspec
import pytest

from gateway.placement import explain
from gateway.placement.decisions import Explained
from gateway.placement.explain import EXPLAIN_LINE, WOULD_LINE, NoPlacement, WorkersExplain, Would, WouldAnswer


def told(at_unix: float) -> bytes:
    return msgspec.msgpack.encode(Explained("r", at_unix, "acme", "sim", "chat", "p2c", "a", 10, 20, 30, ()))


async def test_of_several_workers_the_last_decision_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def every(_run_dir: Path, question: bytes) -> list[bytes]:
        asked.append(question)
        return [told(2.0), told(5.0), told(3.0)] if question.endswith(b"known") else []

    monkeypatch.setattr(explain, "ask_every", every)
    found = await WorkersExplain(tmp_path).of("known")
    assert found is not None
    assert found.at_unix == 5.0
    assert await WorkersExplain(tmp_path).of("smörgås") is None
    assert asked == [EXPLAIN_LINE + b"known", EXPLAIN_LINE + b"sm?rg?s"]


async def test_what_no_worker_remembers_is_read_from_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def every(_run_dir: Path, question: bytes) -> list[bytes]:
        asked.append(question)
        return [told(2.0)] if question.endswith(b"known") else []

    def written(folder: Path, request_id: str, tenant: str) -> Explained | None:
        assert folder == tmp_path / "kept"
        return Explained(request_id, 1.0, tenant, "sim", "chat", "p2c", "a", 10, 20, 30, ()) if request_id == "old" else None

    monkeypatch.setattr(explain, "ask_every", every)
    monkeypatch.setattr(explain, "find_written", written)
    asking = WorkersExplain(tmp_path, tmp_path / "kept")
    found = [await asking.of("known"), await asking.of("old", "acme"), await asking.of("nobodys")]
    assert [(one.at_unix, one.tenant) if one is not None else None for one in found] == [(2.0, "acme"), (1.0, "acme"), None]
    assert asked == [EXPLAIN_LINE + b"known", EXPLAIN_LINE + b"old\nacme", EXPLAIN_LINE + b"nobodys"]
    assert await WorkersExplain(tmp_path).of("old") is None


async def test_the_newest_worker_says_what_would_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer = b""

    async def newest(_run_dir: Path, question: bytes, _timeout_s: float) -> bytes:
        assert msgspec.msgpack.decode(question.removeprefix(WOULD_LINE), type=Would) == asked
        return answer

    asked = Would("acme", "/v1/chat/completions", b"{}")
    monkeypatch.setattr(explain, "ask_newest", newest)
    assert await WorkersExplain(tmp_path).would(asked) is None
    answer = msgspec.msgpack.encode(WouldAnswer(refusal=NoPlacement("no", "request.model")))
    assert await WorkersExplain(tmp_path).would(asked) == WouldAnswer(refusal=NoPlacement("no", "request.model"))
