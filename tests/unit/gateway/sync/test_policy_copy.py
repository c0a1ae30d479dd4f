import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from domain.policy_versions import PolicyVersion
from gateway.sync.policy_copy import CURRENT_COPY, MAX_CHARS, PolicyCopy, check_names, compiled_from, texts_of
from policies.load import PolicyFolder
from policies.yaml.problems import ConfigError

GOOD = 'tenant: "*"\nmodels:\n  - {name: m, pool: chat}\n'


class Versions:
    """What a database has; it may be away, or hold a connection and not answer."""

    def __init__(self, *versions: Mapping[str, str], since: float = 0.0) -> None:
        self.versions = list(versions)
        self.away = self.silent = False
        self._since = since

    async def current(self) -> int:
        raise NotImplementedError

    async def files(self, version: int) -> Mapping[str, str] | None:
        return self.versions[version - 1]

    async def find(self, version: int) -> PolicyVersion | None:
        raise NotImplementedError

    async def newest(self, before: int | None, limit: int) -> list[PolicyVersion]:
        assert (before, limit) == (None, 1)
        if self.away:
            raise OSError("connection refused")
        if self.silent:
            await asyncio.get_running_loop().create_future()
        last = len(self.versions)
        return [PolicyVersion(last, "d", "me", "", self._since + last, len(self.versions[-1]))] if last else []

    async def append(self, files: Mapping[str, str], digest: str, author: str, note: str, now_unix: float) -> PolicyVersion:
        raise NotImplementedError


async def test_the_folder_has_the_newest_version_whole_and_nothing_of_the_one_before(tmp_path: Path) -> None:
    versions = Versions({"a.yaml": GOOD, "b.yaml": "tenant: b\n"})
    copy, folder = PolicyCopy(tmp_path / "copy", versions), PolicyFolder(tmp_path / "copy" / CURRENT_COPY, ["chat"])
    await copy.look()
    assert copy.version == 1
    seen, marks = folder.read(), folder.marks()
    assert [policy.tenant for policy in seen.policies()] == ["b", "*"]
    versions.versions.append({"a.yaml": GOOD})
    await copy.look()
    assert folder.marks() != marks, "whoever follows the folder notices"
    assert [policy.tenant for policy in folder.read().policies()] == ["*"]
    assert os.stat(tmp_path / "copy").st_mode & 0o077 == 0


async def test_versions_before_the_last_two_are_removed(tmp_path: Path) -> None:
    versions = Versions()
    copy = PolicyCopy(tmp_path, versions)
    for _ in range(4):
        versions.versions.append({"a.yaml": GOOD})
        await copy.look()
    assert [one.name.partition("-")[0] for one in sorted(tmp_path.iterdir())] == [CURRENT_COPY, "v3", "v4"]


async def test_the_same_number_of_another_database_is_another_version(tmp_path: Path) -> None:
    await PolicyCopy(tmp_path, Versions({"a.yaml": GOOD})).look()
    other = PolicyCopy(tmp_path, Versions({"b.yaml": GOOD}, since=50.0))
    await other.look()
    assert (other.version, list(texts_of(tmp_path / CURRENT_COPY))) == (1, ["b.yaml"])


async def test_a_version_that_cannot_be_written_leaves_nothing_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions({"a.yaml": GOOD})
    copy = PolicyCopy(tmp_path, versions)
    await copy.look()
    versions.versions.append({"b.yaml": GOOD})

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        for _ in range(3):
            await copy.look()
    assert copy.version == 1
    assert len(list(tmp_path.iterdir())) == 2, "the link, and the version that it leads to"
    await copy.look()
    assert list(texts_of(tmp_path / CURRENT_COPY)) == ["b.yaml"]


async def test_a_link_that_leads_nowhere_is_made_anew(tmp_path: Path) -> None:
    copy = PolicyCopy(tmp_path, Versions({"a.yaml": GOOD}))
    await copy.look()
    shutil.rmtree((tmp_path / CURRENT_COPY).resolve())
    assert copy.version == 0
    await copy.look()
    assert (copy.version, list(texts_of(tmp_path / CURRENT_COPY))) == (1, ["a.yaml"])


async def test_a_database_that_never_answers_is_one_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.sync.policy_copy.WITHIN_S", 0.0)
    versions = Versions({"a.yaml": GOOD})
    versions.silent = True
    copy = PolicyCopy(tmp_path, versions)
    await copy.look()
    versions.silent = False
    monkeypatch.undo()
    await copy.look()
    assert copy.version == 1


def test_a_file_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / ".b.yml").write_text("an editor's")
    assert list(texts_of(tmp_path)) == ["a.yaml"]
    (tmp_path / "b.yml").write_text("tenant: b\n")
    with pytest.raises(ConfigError, match=r"would not be read; call it \*\.yaml"):
        texts_of(tmp_path)


async def test_a_database_that_is_away_or_empty_leaves_what_there_is(tmp_path: Path) -> None:
    versions = Versions({"a.yaml": GOOD})
    copy = PolicyCopy(tmp_path, versions)
    await copy.look()
    versions.away = True
    await copy.look()
    assert copy.version == 1
    assert PolicyCopy(tmp_path / "other", Versions()).version == 0
    await PolicyCopy(tmp_path / "other", Versions()).look()
    assert not (tmp_path / "other").exists()


async def test_what_a_database_holds_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    copy = PolicyCopy(tmp_path / "copy", Versions({"a.yaml": GOOD, "../escaped.yaml": GOOD, "/tmp/x.yaml": GOOD}))
    await copy.look()
    assert sorted(texts_of(tmp_path / "copy" / CURRENT_COPY)) == ["a.yaml"]
    assert not (tmp_path / "copy" / "escaped.yaml").exists()


@pytest.mark.parametrize("name", ["", "a.yml", "../a.yaml", ".a.yaml", "a/b.yaml", "ä.yaml", "x" * 96 + ".yaml", "a.yaml\n"])
def test_names_that_are_none_are_refused(name: str) -> None:
    assert check_names({name: ""})
    with pytest.raises(ConfigError, match="no name of a policy file"):
        compiled_from({name: GOOD}, ["chat"], {})


def test_no_more_is_taken_than_fits() -> None:
    assert not check_names({"a.yaml": "x" * MAX_CHARS})
    assert check_names({"a.yaml": "x" * MAX_CHARS, "b.yaml": "x"})


def test_mistakes_have_their_place_in_the_files_that_were_sent() -> None:
    with pytest.raises(ConfigError) as caught:
        compiled_from(
            {"a.yaml": GOOD, "b.yaml": "tenant: b\nmodels:\n  - {name: m, pool: nowhere}\n", "c.yaml": "tenant: b\n"}, ["chat"], {}
        )
    said = [str(problem) for problem in caught.value.problems]
    assert said[0].startswith("b.yaml:3:")
    assert "there is no pool 'nowhere'" in said[0]
    assert said[1].startswith("c.yaml:1:")
    assert not [line for line in said if "/" in line], "no folder of this machine is told"


def test_policies_that_are_nowhere_yet_are_read_beside_the_prompts_there_are(tmp_path: Path) -> None:
    files = {"a.yaml": GOOD + "prompts: [hello]\n"}
    with pytest.raises(ConfigError, match="there is no prompt 'hello'; there are: none"):
        compiled_from(files, ["chat"], {}, tmp_path)
    (tmp_path / "hello@1.yaml").write_text("id: hello\nversion: 1\nmessages: [{role: system, content: hi}]\n")
    made = compiled_from(files, ["chat"], {}, tmp_path)
    assert list(made.policies()[0].prompts) == ["hello"]
