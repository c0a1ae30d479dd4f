"""Where limits are counted: what is meant when nothing is said, and where an embedded store's files lie."""

from pathlib import Path

import pytest

from gateway.config.load import Settings
from tenancy.counter_url import StoreKind


def settings(folder: Path, **given) -> Settings:
    pool = {"name": "chat", "model": "m", "backends": [{"id": "a", "url": "http://127.0.0.1:9001"}]}
    return Settings.model_validate({"pools": [pool], **given}).based_at(folder)


@pytest.mark.parametrize(("workers", "kind"), [(1, StoreKind.MEMORY), (2, StoreKind.EMBEDDED), (64, StoreKind.EMBEDDED)])
def test_the_default_follows_the_number_of_workers(tmp_path, workers, kind):
    assert settings(tmp_path, workers=workers).counter_url.kind is kind


@pytest.mark.parametrize(
    ("stores", "folder"),
    [
        ({"counters": "valkey+embedded://"}, "tidegate-counters"),
        ({"counters": "valkey+embedded://", "sql": "sqlite:///state/gate.db"}, "state/tidegate-counters"),
        ({"counters": "valkey+embedded://", "sql": "postgresql://gate@db/tidegate"}, "tidegate-counters"),
        ({"counters": "valkey+embedded:///elsewhere"}, "elsewhere"),
        ({"counters": "valkey+embedded:////var/lib/tidegate"}, "/var/lib/tidegate"),
    ],
)
def test_an_embedded_stores_folder(tmp_path, stores, folder):
    assert settings(tmp_path, stores=stores).counter_url.folder == str(tmp_path.resolve() / folder)
