"""The harness of executed examples itself: what it runs, compares and refuses, and how its failures read."""

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.fragments import WrongExample, check
from tests.docs.pages import BadFence, Page, read_page
from tests.docs.ports import PortMap
from tests.docs.shell import PageRun, running


def written(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(text)
    return read_page(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in ("pages", "shell"):
        monkeypatch.setattr(f"tests.docs.{module}.ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nx\n```\n", "page.md:1: '' is no language"),
        ("```console\n$ ls\n```\n", "page.md:1: 'console' is no language"),
        ("a\n```sh later\nls\n```\n", "page.md:2: 'later' says nothing"),
        ("```sh not-run:\nls\n```\n", "page.md:1: not-run needs a reason"),
        ("```sh\nls\n", "page.md:1: the fence has no end"),
        ("```text output\na\n```\n", "page.md:1: no `sh` fence stands above"),
    ],
)
def test_bad_fences_are_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(BadFence, match=re.escape(message)):
        written(folder, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```yaml\ntenant: acme\nmodelz: []\n```\n", "add as=KIND"),
        ("```yaml as=policy\nmodelz: []\n```\n", "modelz: is no known key"),
        ("```yaml\ntenant: acme\nmodels: [{name: 5, pool: a}]\n```\n", "models[0].name"),
        ("```json\n{'a': 1}\n```\n", "page.md:1:"),
        ("```python\nimport\n```\n", "page.md:1: invalid syntax"),
    ],
)
def test_wrong_fragments_are_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(WrongExample, match=f"(?i){re.escape(message)}"):
        check(written(folder, text).fences[0])


COMMANDS = """
```sh
a=one
echo $a > kept
```
```json file=of/page.json
{"at": "127.0.0.1:8080"}
```
```sh
echo "$a $(cat kept) and more"
echo error >&2
```
```text
one … and more
error
```
```sh fails=3
echo before; exit 3
```
```sh
for n in 1 2 3; do echo $n; done; grep -q 127.0.0.1 of/page.json && ! grep 8080 of/page.json
```
```text
1
…
3
```
```sh background
echo it is ready; sleep 1000
```
```python
import pathlib; assert pathlib.Path("kept").exists()
```
"""


def test_a_page_runs_in_one_shell(folder: Path) -> None:
    with PageRun(written(folder, COMMANDS), folder) as run:
        run.run()
        (group,) = run._groups
        assert running(group)
    assert not running(group)


def test_a_daemon_ends_with_its_page(folder: Path) -> None:
    with PageRun(written(folder, "```sh\nsetsid sleep 1000 &\necho $! > id\n```\n"), folder) as run:
        run.run()
        daemon = Path("/proc") / (folder / "work" / "id").read_text().strip() / "cwd"
        assert daemon.readlink() == folder / "work"
    assert not daemon.is_dir()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "```sh\ntrue\necho said; ls /nowhere\ntrue\n```\n",
            r"page.md:3: exit code 2, not 0\ncommand: ls /nowhere\noutput:\nsaid\n.*nowhere",
        ),
        ("```sh fails=1\ntrue\n```\n", r"page.md:1: exit code 0, not 1"),
        ("```sh\nunset_variable=$nothing\n```\n", r"page.md:1: exit code 1, not 0(?s:.*)nothing: unbound"),
        ("```sh\necho a\n```\n```text\nb\n```\n", r"page.md:4: the output differs(?s:.*)-b\n\+a"),
        ("```sh background\necho nothing; exit 4\n```\n", r"page.md:1: the server ended(?s:.*)nothing"),
        ("```sh\nls\n```\n```python\nraise SystemExit(2)\n```\n", r"page.md:4: exit code 2"),
    ],
)
def test_wrong_pages_are_named(folder: Path, text: str, message: str) -> None:
    with pytest.raises(WrongExample, match=message), PageRun(written(folder, text), folder) as run:
        run.run()


@pytest.mark.parametrize(
    ("shown", "bound"),
    [
        ("pools: []\n", ["data", "admin"]),
        ("data:\n  hosts: []\nadmin: {bind: '127.0.0.1:8081'}\n", ["data"]),
        ("data: {hosts: []}\npools: []\n", ["data", "admin"]),
    ],
)
def test_settings_get_free_ports(shown: str, bound: list[str]) -> None:
    document = yaml.safe_load(PortMap(shown).settings(shown))
    for section in {"data", "admin"}:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", document[section]["bind"])
        assert not document[section]["bind"].endswith((":8080", ":8081"))


def test_json_output_is_compared_as_json(folder: Path) -> None:
    page = '```sh\necho \'{"b": [1, {"id": "gw_x1"}], "a": 2}\'\n```\n```json output\n{"…": "…", "b": [1, {"id": "gw_…"}]}\n```\n'
    with PageRun(written(folder, page), folder) as run:
        run.run()
