"""Tokenizers of pools that name none: what the engines say comes first, the model's name is next, and no hold depends on either."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from gateway.config.load import Settings
from gateway.wiring.guessed_tokenizers import guessed_vocabularies_for
from gateway.wiring.requests import deps_for
from policies.compile import PolicySet
from tests.gateway_harness import PEPPER, directory
from tests.scripted_server import Peer, Script, ScriptedServer, scripted


@pytest.fixture(autouse=True)
def no_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def tokenizer_in(folder: Path) -> Path:
    folder.mkdir()
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "sea": 1}, unk_token="?"))
    made.save(str(folder / "tokenizer.json"))
    return folder


def says(paths: dict[str, object]) -> Script:
    """An engine that answers these paths with JSON, and any other with 404."""

    async def script(peer: Peer) -> None:
        head = (await peer.request()).decode()
        document = paths.get(head.split(" ")[1])
        status, body = ("404 Not Found", b"{}") if document is None else ("200 OK", json.dumps(document).encode())
        assert "authorization: Bearer engine-key" in head.replace("Authorization", "authorization")
        await peer.send(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)

    return script


def settings_of(*servers: ScriptedServer | str, model: str = "sim", **pool: Any) -> Settings:
    urls = [server if isinstance(server, str) else server.url for server in servers]
    backends = [{"id": f"e{at}", "url": url, "kv_events": {"endpoint": f"tcp://127.0.0.1:{5557 + at}"}} for at, url in enumerate(urls)]
    chat = {"name": "chat", "model": model, "dialect": "vllm", "backends": backends, "api_key": {"env": "ENGINE_KEY"}, **pool}
    return Settings.model_validate({"pools": [chat]}).based_at(Path("/"))


@pytest.fixture(autouse=True)
def key_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "engine-key")


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_the_folder_that_the_engine_reports_is_read_and_lowers_no_hold(dialect: str, tmp_path: Path) -> None:
    told = str(tokenizer_in(tmp_path / "of-engine"))
    paths: dict[str, object] = {"/v1/models": {"data": [{"id": "sim", "root": told}]}, "/server_info": {"model_path": told, "page_size": 1}}
    async with scripted(says(paths)) as engine:
        settings = settings_of(engine, dialect=dialect)
        guessed = await guessed_vocabularies_for(settings)
        assert list(guessed) == ["chat"]
        deps = deps_for(
            settings, PolicySet({}, None, ""), directory([]), PEPPER, observe=lambda _: None, log_defect=lambda *_: None, guessed=guessed
        )
        assert deps.prompts.tokens_of("chat"), "the router sees the engine's own tokens"
        assert deps.prompt_counts.pools == frozenset(), "and every limit still counts bytes"


async def test_what_the_engine_says_comes_before_the_models_name(tmp_path: Path) -> None:
    by_name, told = tokenizer_in(tmp_path / "by-name"), tokenizer_in(tmp_path / "told")
    (told / "chat_template.jinja").write_text("{{ nothing")  # it cannot be loaded, so it is seen which of the two was taken
    async with scripted(says({"/v1/models": {"data": [{"id": str(by_name), "root": str(told)}]}})) as engine:
        assert await guessed_vocabularies_for(settings_of(engine, model=str(by_name))) == {}
    assert list(await guessed_vocabularies_for(settings_of("http://127.0.0.1:1", model=str(by_name)))) == ["chat"], "the engine is away"


@pytest.mark.parametrize("root", ["/no/such/folder", "org/never-downloaded", "", 7, None])
async def test_a_second_engine_is_asked_where_the_first_says_nothing_of_use(root: object, tmp_path: Path) -> None:
    told = str(tokenizer_in(tmp_path / "told"))
    first, second = (
        says({"/v1/models": {"data": [{"id": "sim", "root": root}]}}),
        says({"/v1/models": {"data": [{"id": "sim", "root": told}]}}),
    )
    async with scripted(first) as one, scripted(second) as other:
        assert list(await guessed_vocabularies_for(settings_of(one, other))) == ["chat"]
        assert list(await guessed_vocabularies_for(settings_of(one))) == []


async def test_nobody_is_asked_where_a_guess_is_of_no_use(tmp_path: Path) -> None:
    async with scripted(says({})) as engine:
        configured = settings_of(engine, tokenizer="o200k_base")
        without_events = settings_of(engine, backends=[{"id": "e0", "url": engine.url}])
        for settings in (configured, without_events):
            assert await guessed_vocabularies_for(settings) == {}
        assert engine.peers == []


async def test_an_engine_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.wiring.guessed_tokenizers.ASK_WITHIN_S", 0.05)
    by_name = tokenizer_in(tmp_path / "by-name")

    async def silent(peer: Peer) -> None:
        await peer.request()
        await asyncio.Event().wait()

    async with scripted(silent) as engine:
        assert list(await guessed_vocabularies_for(settings_of(engine, model=str(by_name)))) == ["chat"], "its name is known all the same"
