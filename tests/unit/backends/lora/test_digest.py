"""The digest of an adapter: of its names and contents, and of nothing else; checked against coreutils."""

import os
import subprocess
from pathlib import Path

import pytest

from backends.lora import digest as module
from backends.lora.digest import NotAnAdapter, lora_digest

COREUTILS = "find -L . -type f -not -path '*/.*' -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    (folder / "extra").mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"r": 8}')
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 100)
    (folder / "extra" / "tökens with blanks.json").write_text("[]")
    return folder


def test_anybody_can_check_it_with_coreutils(adapter: Path) -> None:
    printed = subprocess.run(COREUTILS, shell=True, cwd=adapter, capture_output=True, text=True, check=True).stdout
    assert printed.split()[0] == lora_digest(adapter)
    assert COREUTILS.replace("\\\\", "\\") in (module.__doc__ or "")


def test_links_count_as_what_they_lead_to_and_hidden_files_and_times_not_at_all(adapter: Path, tmp_path: Path) -> None:
    before = lora_digest(adapter)
    blob = tmp_path / "blob"
    (adapter / "adapter_model.safetensors").rename(blob)
    (adapter / "adapter_model.safetensors").symlink_to(blob)
    (adapter / ".gitattributes").write_text("x")
    (adapter / ".cache").mkdir()
    (adapter / ".cache" / "lock").write_text("x")
    os.utime(adapter / "adapter_config.json", (1, 1))
    assert lora_digest(adapter) == before


@pytest.mark.parametrize("change", ["content", "name", "more", "moved"])
def test_every_change_of_content_or_name_changes_it(adapter: Path, change: str) -> None:
    before = lora_digest(adapter)
    weights = adapter / "adapter_model.safetensors"
    if change == "content":
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    elif change == "name":
        weights.rename(adapter / "adapter_model2.safetensors")
    elif change == "more":
        (adapter / "empty").touch()
    else:
        weights.rename(adapter / "extra" / "adapter_model.safetensors")
    assert lora_digest(adapter) != before


def test_what_is_no_adapter_is_said(adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAnAdapter, match=r"there is no adapter_config\.json in .*; name the folder"):
        lora_digest(tmp_path)
    (adapter / "two\nlines").touch()
    with pytest.raises(NotAnAdapter, match="line break"):
        lora_digest(adapter)
    (adapter / "two\nlines").unlink()
    (adapter / "dangling").symlink_to(tmp_path / "nothing")
    with pytest.raises(NotAnAdapter, match="dangling cannot be read: No such file"):
        lora_digest(adapter)
    monkeypatch.setattr(module, "MAX_FILES", 2)
    with pytest.raises(NotAnAdapter, match="more than 2 files"):
        lora_digest(adapter)
