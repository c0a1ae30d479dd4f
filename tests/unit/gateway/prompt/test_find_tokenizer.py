from pathlib import Path

import pytest

from gateway.prompt.find_tokenizer import found_tokenizer, hub_cache

COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose hub cache has two revisions of one model."""
    repository = tmp_path / ".cache/huggingface/hub/models--Qwen--Qwen3-8B"
    for name, commit in (("main", COMMIT), ("v2", OTHER)):
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / name).write_text(commit)
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "snapshots" / commit / "tokenizer.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(("revision", "commit"), [("1", COMMIT), ("main", COMMIT), ("v2", OTHER), (OTHER, OTHER), ("c" * 40, COMMIT)])
def test_a_model_of_the_hub_is_found_in_the_local_cache_at_its_revision(home: Path, revision: str, commit: str) -> None:
    found = found_tokenizer("Qwen/Qwen3-8B", revision, {}, home)
    assert found == home / ".cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots" / commit


def test_the_folder_that_engines_serve_is_taken_itself(home: Path, tmp_path: Path) -> None:
    model = tmp_path / "models" / "own"
    model.mkdir(parents=True)
    assert found_tokenizer(str(model), "1", {}, home) is None
    (model / "tokenizer.json").write_text("{}")
    assert found_tokenizer(str(model), "1", {}, home) == model


@pytest.mark.parametrize("model", ["Qwen/Qwen3-9B", "qwen", "../../etc", "a/b/c", "models/own", "Qwen/..", ""])
def test_no_other_name_finds_anything(home: Path, model: str) -> None:
    assert found_tokenizer(model, "1", {}, home) is None
    assert found_tokenizer("Qwen/Qwen3-8B", "../main", {}, home) is not None  # a wrong revision falls back to main
    (home / ".cache/huggingface/hub/models--Qwen--Qwen3-8B/refs/main").write_text("../..")
    assert found_tokenizer("Qwen/Qwen3-8B", "1", {}, home) is None


def test_the_variables_of_the_hub_move_its_cache() -> None:
    home = Path("/home/a")
    assert hub_cache({}, home) == Path("/home/a/.cache/huggingface/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/c"}, home) == Path("/c/huggingface/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/c", "HF_HOME": "/h"}, home) == Path("/h/hub")
    assert hub_cache({"HF_HOME": "/h", "HF_HUB_CACHE": "/x"}, home) == Path("/x")
