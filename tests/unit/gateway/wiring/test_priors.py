"""The priors of pools: their own file first, then the registry; without either the pool serves as before."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from domain.membership import Traits
from domain.model_revisions import ModelRevision
from gateway.config.load import load_settings
from gateway.placement.pool_state import PoolDefaults, rates_of
from gateway.wiring.priors import priors_for
from policies.yaml.problems import ConfigError
from routing.profile import EngineProfile, profile_text
from routing.rates import PRIORS, UNKNOWN_RATES
from tenancy.stores.memory import MemoryModelRevisions

SLOW = PRIORS["h100-70b-tp4"]
DIGEST = "sha256:" + "ab" * 32
PINNED = f"pinned: {{digest: '{DIGEST}'}}"


def profile(name: str = "h100-70b-tp4") -> str:
    return profile_text(EngineProfile(engine="vllm", served="m", measured_unix=1.0, rates=PRIORS[name]._asdict()))


def settings(folder: Path, *lines: str) -> Any:
    (folder / "policies").mkdir(exist_ok=True)
    fields = "".join(f"    {line}\n" for line in lines)
    (folder / "tidegate.yaml").write_text(f"pools:\n  - name: chat\n    model: m\n    revision: v1\n    backends: []\n{fields}")
    return load_settings(folder / "tidegate.yaml")


async def registry(kept: str = "", digest: str = DIGEST) -> MemoryModelRevisions:
    store = MemoryModelRevisions()
    await store.add(ModelRevision(model="m", revision="v1", weights="/m", digest=digest))
    await store.keep_profile("m", "v1", kept)
    return store


async def test_a_pinned_pool_starts_with_the_profile_of_its_revision(tmp_path: Path) -> None:
    assert await priors_for(settings(tmp_path, PINNED), await registry(profile())) == {"chat": SLOW}
    assert await priors_for(settings(tmp_path, PINNED), await registry()) == {}
    assert await priors_for(settings(tmp_path), await registry(profile())) == {}, "a pool that is not pinned asks nobody"


async def test_the_pools_own_file_comes_first(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(profile("rtx-4090-8b"))
    assert await priors_for(settings(tmp_path, PINNED, "profile: p.json"), await registry(profile())) == {"chat": PRIORS["rtx-4090-8b"]}


class _Away(MemoryModelRevisions):
    async def get(self, model: str, revision: str) -> ModelRevision:
        raise OSError("no database")


async def test_a_registry_that_is_away_or_lacks_the_revision_stops_no_worker(tmp_path: Path) -> None:
    assert await priors_for(settings(tmp_path, PINNED), _Away()) == {}
    assert await priors_for(settings(tmp_path, PINNED), MemoryModelRevisions()) == {}


async def test_a_registry_that_is_silent_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []

    class _Silent(MemoryModelRevisions):
        async def get(self, model: str, revision: str) -> ModelRevision:
            asked.append(model)
            raise TimeoutError

    (tmp_path / "policies").mkdir()
    pools = "".join(f"  - {{name: {name}, model: {name}, backends: [], {PINNED}}}\n" for name in ("a", "b", "c"))
    (tmp_path / "tidegate.yaml").write_text(f"pools:\n{pools}")
    with capture_logs() as logged:
        assert await priors_for(load_settings(tmp_path / "tidegate.yaml"), _Silent()) == {}
    assert asked == ["a"]
    assert [one["pool"] for one in logged if "cannot be asked" in one["event"]] == ["a", "b", "c"]


async def test_a_pool_that_is_pinned_with_another_digest_is_told_and_has_no_profile(tmp_path: Path) -> None:
    other = "sha256:" + "cd" * 32
    with capture_logs() as logged:
        assert await priors_for(settings(tmp_path, PINNED), await registry(profile(), other)) == {}
    (said,) = logged
    assert said["event"] == "a pool is pinned to a revision with another digest than the registry has"
    assert (said["log_level"], said["pool"], said["revision"], said["pinned"], said["has"]) == ("warning", "chat", "m@v1", DIGEST, other)
    (tmp_path / "p.json").write_text(profile("rtx-4090-8b"))
    with capture_logs() as logged:
        rates = await priors_for(settings(tmp_path, PINNED, "profile: p.json"), await registry(profile(), other))
    assert rates == {"chat": PRIORS["rtx-4090-8b"]}, "the pool's own file stands"
    assert "another digest" in logged[0]["event"]


async def test_a_pool_that_is_pinned_to_a_retired_revision_is_told_and_serves_as_before(tmp_path: Path) -> None:
    store = await registry(profile())
    with capture_logs() as logged:
        await priors_for(settings(tmp_path, PINNED), store)
    assert [one["event"] for one in logged] == ["profile"]
    await store.retire("m", "v1", 7.0)
    with capture_logs() as logged:
        assert await priors_for(settings(tmp_path, PINNED), store) == {"chat": SLOW}
    assert (logged[0]["event"], logged[0]["retired_unix"]) == ("a pool is pinned to a revision that is retired", 7.0)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("profile: none.json",), "'none.json' is no file that can be read"),
        (("profile: bad.json",), "'bad.json' is no profile of `tidegate engine profile`"),
        (("profile: p.json", "hardware: h100-8b"), "hardware beside its profile"),
        (("pinned: {digest: 'sha256:12'}",), "digest"),
    ],
)
def test_what_is_no_profile_or_pin_is_named_with_its_place(tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "p.json").write_text(profile())
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, *lines)
    assert words in str(refused.value)
    assert "tidegate.yaml:6" in str(refused.value)


def test_a_backends_own_hardware_is_nearer_than_its_pools_profile() -> None:
    defaults = PoolDefaults(hardware="profiled", prior=SLOW)
    assert rates_of(Traits(), defaults) == SLOW
    assert rates_of(Traits(hardware="rtx-4090-8b"), defaults) == PRIORS["rtx-4090-8b"]
    assert rates_of(Traits(), PoolDefaults()) == UNKNOWN_RATES


def test_the_reference_of_a_pool_is_its_model_and_revision_without_the_proof(tmp_path: Path) -> None:
    (pool,) = settings(tmp_path, PINNED).pools
    assert pool.reference == "m@v1"
    (pool,) = settings(tmp_path, "pinned: {model: team/m, digest: 'DD', unproven: admit}".replace("DD", DIGEST)).pools
    assert (pool.reference, pool.pin.admit, pool.pin.digest) == ("team/m@v1", True, DIGEST)
