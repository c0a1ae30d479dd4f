"""Where a worker keeps files: what the settings name has to be usable, and the usual folder need not be."""

from pathlib import Path

import pytest

from gateway.config.load import Settings, load_settings
from gateway.wiring.files import FileParts
from tenancy.stores.sql import StoreError

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://127.0.0.1:8000"}]}]\n'


def settings(folder: Path, more: str = "") -> Settings:
    (folder / "policies").mkdir()
    (folder / "tidegate.yaml").write_text(POOLS + more)
    return load_settings(folder / "tidegate.yaml", {})


async def test_a_gateway_without_a_place_for_files_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "tidegate-files").write_text("a file stands in the folder's place")
    parts = FileParts(settings(tmp_path))
    assert parts.service is None
    await parts.close()


async def test_a_folder_that_the_settings_name_has_to_be_usable(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file stands in the folder's place")
    with pytest.raises(StoreError, match="kept cannot be used"):
        FileParts(settings(tmp_path, "files: {folder: kept}\n"))


async def test_files_are_kept_in_the_usual_folder(tmp_path: Path) -> None:
    parts = FileParts(settings(tmp_path))
    assert parts.service is not None
    assert (tmp_path / "tidegate-files").is_dir()
    await parts.close()
