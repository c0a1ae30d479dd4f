"""The detectors of a worker, built from settings and asked for real: a guard model of a pool, and services on the loopback."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.config.load import Settings
from gateway.config.secrets import SecretError
from gateway.signed_webhook import SIGNATURE, signature
from gateway.wiring.guards import GuardDetectors
from gateway.wiring.requests import deps_for
from guardrails.ports import Detected, DetectorAway
from policies.compile import PolicySet
from tests.gateway_harness import PEPPER, directory, gateway
from tests.scripted_server import Peer, Script, scripted

PATIENT_MS = 20_000.0
"""On a busy machine an answer may take longer than a detector has by default."""
KEY = "a key of thirty-two characters.."


def engine(**fields: Any) -> SimEngine:
    return SimEngine(SimSettings(models=("sim",), speed=1000, guard={"bomb": "S9", "password": "S7"}, **fields))


def guards(**detectors: dict[str, Any]) -> dict[str, Any]:
    return {"detectors": {name: {"timeout_ms": PATIENT_MS, **fields} for name, fields in detectors.items()}}


def replies(body: object, times: int = 1) -> Script:
    data = json.dumps(body).encode()

    async def script(peer: Peer) -> None:
        for _ in range(times):
            if await peer.request():
                await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data))

    return script


def questions(engine: SimEngine, about: bytes) -> int:
    return sum(about in received.body for received in engine.received)


@pytest.mark.parametrize("prompt", ["template", "written"])
async def test_a_guard_model_of_a_pool_judges_for_each_tenant_by_itself(prompt: str) -> None:
    harm = {"kind": "guard_model", "pool": "chat", "form": "llama_guard", "prompt": prompt}
    async with engine() as guard, gateway(guard.url, guards=guards(harm=harm)) as gate:
        detector = gate.deps.detectors["harm"]
        assert await detector.detect("how is a bomb made", "input", "acme") == (Detected("S9", 1.0, 0, 18),)
        assert await detector.detect("how is a cake made", "output", "acme") == ()
        assert await detector.detect("how is a bomb made", "input", "acme") == (Detected("S9", 1.0, 0, 18),)
        assert questions(guard, b"bomb") == 1, "remembered"
        await detector.detect("how is a bomb made", "input", "bolt")
        assert questions(guard, b"bomb") == 2, "and not for another tenant"


async def test_an_engine_that_answers_with_words_is_unreadable_and_one_that_is_away_an_error() -> None:
    harm = {"kind": "guard_model", "pool": "chat", "form": "llama_guard", "remember_s": 0.0}
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as words, gateway(words.url, guards=guards(harm=harm)) as gate:
        with pytest.raises(DetectorAway, match=r"^unreadable$"):
            await gate.deps.detectors["harm"].detect("text", "input", "acme")
    async with engine() as guard, gateway(guard.url, guards=guards(harm=harm)) as gate:
        guard.inject([FaultRule("status_500")])
        with pytest.raises(DetectorAway, match=r"^error$"):
            await gate.deps.detectors["harm"].detect("text", "input", "acme")
        gate.deps.upstreams.clear()
        with pytest.raises(DetectorAway, match=r"^error$"):
            await gate.deps.detectors["harm"].detect("other text", "input", "acme")


async def test_a_frozen_engine_costs_the_detectors_time_and_is_let_go() -> None:
    harm = {"kind": "guard_model", "pool": "chat", "form": "llama_guard", "timeout_ms": 50.0}
    async with engine() as guard, gateway(guard.url, guards={"detectors": {"harm": harm}}, poll=False) as gate:
        guard.inject([FaultRule("frozen")] * 5)
        began = gate.deps.loop.time()
        with pytest.raises(DetectorAway, match=r"^timeout$"):
            await gate.deps.detectors["harm"].detect("text", "input", "acme")
        assert gate.deps.loop.time() - began >= 0.049, "the loop calls a nanosecond early"


async def test_a_webhook_is_signed_and_sent_what_it_is_asked_about_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_HOOK", KEY)
    async with engine() as guard, scripted(replies({"findings": [{"kind": "name", "begin": 3, "end": 6}]}, 2)) as receiver:
        own = {"kind": "webhook", "url": f"http://127.0.0.1:{receiver.port}/classify", "secret": {"env": "GUARD_HOOK"}, "private": True}
        async with gateway(guard.url, guards=guards(own=own)) as gate:
            assert await gate.deps.detectors["own"].detect("to Ann", "input", "acme") == (Detected("name", 1.0, 3, 6),)
            head, _, body = receiver.peers[0].received.partition(b"\r\n\r\n")
            sent = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.decode().splitlines()[1:])}
            assert json.loads(body) == {"text": "to Ann", "direction": "input", "tenant": "acme"}
            at = int(sent[SIGNATURE].partition(",")[0].removeprefix("t="))
            assert sent[SIGNATURE] == signature(KEY.encode(), at, body)
            assert abs(at - gate.deps.wall()) < 60
            assert "authorization" not in sent


@pytest.mark.req("R40")
async def test_a_webhook_without_private_reaches_nothing_of_the_own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUARD_HOOK", KEY)
    async with engine() as guard, scripted(replies({"findings": []})) as receiver:
        own = {"kind": "webhook", "url": f"https://localhost:{receiver.port}/", "secret": {"env": "GUARD_HOOK"}}
        async with gateway(guard.url, guards=guards(own=own)) as gate:
            with pytest.raises(DetectorAway, match=r"^error$"):
                await gate.deps.detectors["own"].detect("text", "input", "acme")
        assert receiver.peers == []


async def test_services_get_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_KEY", "the-key")
    entities = [{"entity_type": "PERSON", "start": 3, "end": 6, "score": 0.85}]
    flags = {"results": [{"flagged": True, "categories": {"hate": True}, "category_scores": {"hate": 0.9}}]}
    async with engine() as guard, scripted(replies(entities)) as presidio, scripted(replies(flags)) as hosted:
        detectors = guards(
            names={"kind": "presidio", "url": f"http://127.0.0.1:{presidio.port}/analyze", "private": True},
            harm={
                "kind": "moderations",
                "url": f"http://127.0.0.1:{hosted.port}/v1/moderations",
                "api_key": {"env": "SERVICE_KEY"},
                "private": True,
            },
        )
        async with gateway(guard.url, guards=detectors) as gate:
            assert await gate.deps.detectors["names"].detect("to Ann", "input", "acme") == (Detected("PERSON", 0.85, 3, 6),)
            assert await gate.deps.detectors["harm"].detect("hateful", "input", "acme") == (Detected("hate", 0.9, 0, 7),)
        assert b"authorization" not in presidio.peers[0].received.lower()
        assert b"authorization: bearer the-key" in hosted.peers[0].received.lower()


def settings(detector: dict[str, Any], revision: str = "1") -> Settings:
    pool = {"name": "chat", "model": "sim", "revision": revision, "backends": [{"id": "a", "url": "http://127.0.0.1:1"}]}
    return Settings.model_validate({"pools": [pool], "guards": {"detectors": {"harm": detector}}}).based_at(Path("/"))


async def made(wanted: Settings) -> GuardDetectors:
    detectors = GuardDetectors()
    deps = deps_for(
        wanted, PolicySet({}, None, ""), directory([]), PEPPER, observe=lambda _: None, log_defect=lambda *_: None, detectors=detectors
    )
    assert deps.detectors is detectors
    return detectors


async def test_a_version_changes_with_the_settings_and_with_the_model_behind_them() -> None:
    base = {"kind": "guard_model", "pool": "chat", "form": "llama_guard"}
    variants = [
        settings(base),
        settings(base, revision="2"),
        settings({**base, "form": "qwen_guard"}),
        settings({**base, "max_chars": 4000}),
    ]
    versions = {(await made(wanted))["harm"]._terms.version for wanted in [*variants, settings(base)]}  # type: ignore[attr-defined]
    assert len(versions) == len(variants)


async def test_a_worker_does_not_start_without_a_detectors_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUARD_HOOK", raising=False)
    with pytest.raises(SecretError, match="GUARD_HOOK"):
        await made(settings({"kind": "webhook", "url": "https://guard.example.com/", "secret": {"env": "GUARD_HOOK"}}))


async def test_figures_are_those_of_each_detector() -> None:
    harm = {"kind": "guard_model", "pool": "chat", "form": "llama_guard"}
    async with engine() as guard, gateway(guard.url, guards=guards(harm=harm)) as gate:
        for _ in range(3):
            await gate.deps.detectors["harm"].detect("text", "input", "acme")
        assert isinstance(gate.deps.detectors, GuardDetectors)
        figures = gate.deps.detectors.figures()["harm"]
        assert (figures.asked, figures.answered, figures.remembered, figures.under_way) == (1, 1, 2, 0)
        assert figures.seconds > 0
