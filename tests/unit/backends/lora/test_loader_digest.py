"""Adapters whose files this machine can read too: only the bytes that the digest names are loaded."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from backends.dialects import DIALECTS
from backends.lora import digest as module
from backends.lora.digest import CONFIG, DigestCheck, lora_digest
from backends.lora.loader import LoadDone, LoraLoader, PoolAdapters
from backends.lora.residency import HOLD_OFF_S, NONE, Adapter, LoraUnavailable
from backends.ports import Call, Flight, ReplySink, Upstream

WEIGHTS = "adapter_model.safetensors"


class Obedient(Upstream):
    """An engine that loads what it is told to, whatever is at the path."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        asyncio.get_running_loop().call_soon(self._reply, call, sink)
        return _Flight()

    def _reply(self, call: Call, sink: ReplySink) -> None:
        if call.method == "POST":
            name = json.loads(call.body)["lora_name"]
            self.loaded.remove(name) if "unload" in call.path else self.loaded.append(name)
        sink.on_head(200, {})
        sink.on_data(json.dumps({"data": [{"id": name, "parent": "m"} for name in self.loaded]}).encode())
        sink.on_end()

    async def close(self) -> None: ...


class _Flight(Flight):
    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Site:
    """Two engines with one slot each, and the adapters of these folders."""

    def __init__(self, **folders: tuple[Path, str]) -> None:
        self.now = 100.0
        self.done: list[LoadDone] = []
        self.engines = {"e0": Obedient(), "e1": Obedient()}
        self.adapters = {name: Adapter(name, digest, str(path)) for name, (path, digest) in folders.items()}
        self.check = DigestCheck()
        self.loader = LoraLoader(
            {"p": PoolAdapters(self.adapters, 1, DIALECTS["vllm"])},
            self.engines,
            lambda _: NONE,
            lambda: self.now,
            5.0,
            self.done.append,
            check=self.check.mismatch,
        )

    async def use(self, name: str, backend: str = "e0") -> None:
        self.now += 1
        adapter = self.adapters[name]
        adapters = self.loader.charge("p", backend, adapter)
        try:
            await self.loader.load("p", backend, adapter, 5.0)
        finally:
            adapters.release(adapter.served, self.now)

    async def refused(self, name: str) -> str:
        with pytest.raises(LoraUnavailable) as caught:
            await self.use(name)
        return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "adapter"
    made.mkdir()
    (made / CONFIG).write_text("{}")
    (made / WEIGHTS).write_bytes(b"weights" * 1000)
    return made


async def test_other_bytes_than_the_digest_names_are_never_loaded_and_evict_nothing(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    site = Site(right=(folder, lora_digest(folder)), wrong=(other, lora_digest(other)))
    (other / WEIGHTS).write_bytes(b"stthgiew" * 1000)
    await site.use("right")
    why = await site.refused("wrong")
    assert why == (
        f"the files in {other} have the digest {lora_digest(other)[:12]}… and not {site.adapters['wrong'].digest[:12]}…; put the right "
        "files there, or correct digest or path in the settings"
    )
    assert site.engines["e0"].loaded == [site.adapters["right"].served]
    assert [(one.served, one.why) for one in site.done] == [(site.adapters["right"].served, ""), (site.adapters["wrong"].served, why)]


async def test_files_that_were_put_right_are_loaded_after_the_hold_off(folder: Path) -> None:
    digest, right = lora_digest(folder), (folder / WEIGHTS).read_bytes()
    site = Site(a=(folder, digest))
    (folder / WEIGHTS).write_bytes(right[:-1] + b"x")
    why = await site.refused("a")
    (folder / WEIGHTS).write_bytes(right)
    assert await site.refused("a") == why, "within the hold-off"
    site.now += HOLD_OFF_S
    await site.use("a")
    assert site.engines["e0"].loaded == [site.adapters["a"].served]


async def test_files_are_read_once_for_all_engines_and_again_once_they_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(a=(folder, lora_digest(folder)))
    read: list[Path] = []
    monkeypatch.setattr(module, "lora_digest", lambda path: read.append(path) or lora_digest(path))
    await asyncio.gather(site.use("a", "e0"), site.use("a", "e1"))
    assert read == [folder]
    (folder / WEIGHTS).write_bytes(b"W" * 7000)
    assert "have the digest" in await site.check.mismatch(site.adapters["a"], 5.0)
    assert read == [folder, folder]


@pytest.mark.parametrize("case", ["no folder", "no adapter", "unreadable"])
async def test_files_that_only_the_engines_can_read_are_theirs_to_judge(folder: Path, case: str) -> None:
    digest = lora_digest(folder)
    if case == "no folder":
        shutil.rmtree(folder)
    elif case == "no adapter":
        (folder / CONFIG).unlink()
    else:
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).symlink_to(folder / "nothing")
    site = Site(a=(folder, digest))
    await site.use("a")
    assert site.engines["e0"].loaded == [site.adapters["a"].served]


async def test_a_disk_that_does_not_answer_ends_the_wait_and_not_the_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(a=(folder, lora_digest(folder)))
    asked, answers = 0, asyncio.Event()

    async def slow(_: object, path: Path) -> str:
        nonlocal asked
        asked += 1
        await answers.wait()
        return lora_digest(path)

    monkeypatch.setattr(DigestCheck, "_read", slow)
    for _ in range(2):
        assert await site.check.mismatch(site.adapters["a"], 0.0) == f"the files in {folder} were not read within 0 s"
        await asyncio.sleep(0)
    answers.set()
    assert await site.check.mismatch(site.adapters["a"], 5.0) == ""
    assert asked == 1
