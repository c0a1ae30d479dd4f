import os
from pathlib import Path

import msgspec
import pytest

from gateway.process.snapshots import PolicyState
from gateway.sync.policies import MAX_TOLD, RELOAD_LINE, USE_LINE, PolicyWatch
from policies.compile import PolicySet
from policies.load import PolicyFolder
from policies.rollout.document import RolloutDocument, text_of
from policies.yaml.problems import ConfigError

GOOD = "tenant: {tenant}\nmodels: [{{name: {model}, pool: chat}}]\n"


class Live:
    """Stands for what requests look at."""

    policies: PolicySet


class Site:
    """A folder, and a watch that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.known: list[list[str]] = []
        self.live = Live()
        self.watch = PolicyWatch(PolicyFolder(folder, ["chat"]), lambda: self.now, self.known.append)

    def write(self, tenant: str, text: str) -> None:
        """A file whose time is always another one, however coarse the clock of the disk is."""
        file = self.folder / f"{tenant}.yaml"
        file.write_text(text)
        self.now += 1
        os.utime(file, (self.now, self.now))

    def models(self, tenant: str = "acme") -> list[str]:
        policy = self.live.policies.for_tenant(tenant)
        return [] if policy is None else sorted(policy.models)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.write("acme", GOOD.format(tenant="acme", model="a"))
    made.live.policies = made.watch.first()
    made.watch.follow(made.live)
    return made


async def test_a_change_is_in_force_after_it_stood_still_for_one_look(site: Site) -> None:
    site.write("acme", GOOD.format(tenant="acme", model="b"))
    await site.watch.look()
    assert site.models() == ["a"]
    site.write("lab", GOOD.format(tenant="lab", model="c"))  # the second file of the same change
    await site.watch.look()
    assert (site.models(), site.models("lab")) == (["a"], [])
    await site.watch.look()
    assert (site.models(), site.models("lab")) == (["b"], ["c"])
    assert site.known[-1] == ["b", "c"]
    assert (site.watch.state.digest, site.watch.state.loaded_unix) == (site.live.policies.digest, site.now)


async def test_a_folder_with_mistakes_changes_nothing_until_it_is_mended(site: Site) -> None:
    before = site.live.policies
    site.write("lab", "tenant: lab\nmodls: []\n")
    for _ in range(3):
        await site.watch.look()
    assert site.live.policies is before
    state = site.watch.state
    assert (state.digest, state.problem_count) == (before.digest, 1)
    assert "lab.yaml:2:1: modls: is no known key; did you mean models?" in state.problems[0]
    site.write("lab", "tenant: lab\nmodels: []\n")
    for _ in range(2):
        await site.watch.look()
    assert site.live.policies is not before
    assert site.watch.state.problems == ()


async def test_a_policy_without_models_is_active_and_told(site: Site) -> None:
    site.write("lab", "tenant: lab\nmodels: []\n")
    state = await site.watch.reload()
    assert (site.live.policies.digest, site.models("lab")) == (state.digest, [])
    (warning,) = state.warnings
    assert "lab.yaml:2:1: models: the policy of tenant lab has no model, so every request is refused" in warning
    site.write("lab", GOOD.format(tenant="lab", model="c"))
    assert (await site.watch.reload()).warnings == ()


async def test_a_folder_that_is_gone_or_empty_is_a_mistake_too(site: Site) -> None:
    (site.folder / "acme.yaml").unlink()
    assert (await site.watch.reload()).problem_count == 1
    site.folder.rmdir()
    state = await site.watch.reload()
    assert "cannot be read" in state.problems[0]
    assert site.models() == ["a"]


async def test_only_so_many_mistakes_are_told_and_all_are_counted(site: Site) -> None:
    site.write("lab", "tenant: lab\n" + "".join(f"wrong{n}: 1\n" for n in range(MAX_TOLD + 5)))
    state = await site.watch.reload()
    assert (len(state.problems), state.problem_count) == (MAX_TOLD + 1, MAX_TOLD + 5)
    assert state.problems[-1] == "and 5 more"


async def test_what_is_asked_for_is_read_at_once_and_answered(site: Site) -> None:
    site.write("acme", GOOD.format(tenant="acme", model="b"))
    answer = msgspec.msgpack.decode(await site.watch.answers()[RELOAD_LINE](b""), type=PolicyState)
    assert (answer.digest, site.models()) == (site.live.policies.digest, ["b"])


async def test_files_that_did_not_change_are_not_read_again(site: Site) -> None:
    file = site.folder / "acme.yaml"
    time = file.stat().st_mtime
    file.write_text(GOOD.format(tenant="acme", model="z"))
    os.utime(file, (time, time))  # as if nobody had touched it
    site.write("lab", GOOD.format(tenant="lab", model="c"))
    await site.watch.reload()
    assert (site.models(), site.models("lab")) == (["a"], ["c"])


def test_without_any_policy_there_is_nothing_to_start_with(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Site(tmp_path).watch.first()


async def test_workers_say_what_leads_to_the_baseline_of_a_rollout(site: Site) -> None:
    answers = site.watch.answers()
    document = text_of(RolloutDocument(name="v2", baseline="chat", canary="chat-v2"))
    assert msgspec.msgpack.decode(await answers[USE_LINE](document.encode())) == ["tenant acme, model a"]
