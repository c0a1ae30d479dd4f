from pathlib import Path

import pytest

from domain.membership import Member, SourceError
from gateway.config.load import ConfigError
from gateway.fleet.sources import FileSource, problems_in_files, read_backends
from tests.gateway_harness import settings_for

GOOD = 'backends:\n  - {id: a, url: "http://10.0.0.1:8000"}\n  - {id: b, url: "http://${HOST}:8000"}\n'


def test_a_good_file_is_read_with_variables(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(GOOD)
    assert [(b.id, b.url) for b in read_backends(tmp_path / "b.yaml", {"HOST": "h"})] == [
        ("a", "http://10.0.0.1:8000"),
        ("b", "http://h:8000"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("backends: 5\n", 1, "write a list"),
        ("backends:\n  - {id: a, url: 'http://169.254.169.254'}\n", 2, "link-local or cloud-metadata address"),
        ("backends:\n  - {id: a, url: 'http://h:1'}\n  - {id: a, url: 'http://h:2'}\n", 3, "'a' is listed twice"),
        ("backends:\n  - {id: a, url: 'http://h:1', wight: 2}\n", 2, "is no known key"),
        ("pools: []\n", 1, "is no known key"),
        ("backends: [\n", 2, ""),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_backends(tmp_path / "b.yaml", {})
    assert f"b.yaml:{line}:" in str(raised.value)
    assert says in str(raised.value)


async def test_a_source_follows_its_file_and_says_why_it_cannot(tmp_path: Path) -> None:
    file = tmp_path / "b.yaml"
    source = FileSource("chat", file, {"HOST": "h"})
    with pytest.raises(SourceError, match="create it"):
        await source.read()
    file.write_text(GOOD)
    assert await source.read() == [Member("chat", "a", "http://10.0.0.1:8000", "file"), Member("chat", "b", "http://h:8000", "file")]
    file.write_text("backends: 5\n")
    for _ in range(2):
        with pytest.raises(SourceError, match=r"b\.yaml:1"):
            await source.read()
    (tmp_path / "new").write_text("backends: []\n")
    (tmp_path / "new").replace(file)
    assert await source.read() == []


def test_files_are_checked_before_a_start(tmp_path: Path) -> None:
    settings = settings_for([], pool={"backends": [], "discover": {"file": "b.yaml"}}).based_at(tmp_path)
    assert "b.yaml" in str(problems_in_files(settings, {})[0])
    (tmp_path / "b.yaml").write_text("backends: []\n")
    assert problems_in_files(settings, {}) == []
