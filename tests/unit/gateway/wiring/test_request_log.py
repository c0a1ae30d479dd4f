"""Where the request log is kept by the settings, and what is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.wiring.request_log import check_request_log, request_store_for
from tenancy.stores.memory import MemoryRequests
from tenancy.stores.sql import SqlRequests, StoreError


def settings(folder: Path, sql: str = "sqlite:///data/tidegate.db", **request_log: Any) -> Settings:
    pool = {"name": "chat", "model": "m", "backends": [{"id": "e0", "url": "http://127.0.0.1:1"}]}
    return Settings.model_validate({"pools": [pool], "stores": {"sql": sql}, "request_log": request_log}).based_at(folder)


@pytest.mark.parametrize(
    ("sql", "store", "url"),
    [
        ("sqlite:///data/tidegate.db", None, "sqlite:///HOME/data/tidegate-requests.db"),
        ("postgresql://u@h/d", None, "postgresql://u@h/d"),
        ("postgresql://u@h/d", "sqlite:///log.db", "sqlite:///HOME/log.db"),
        ("sqlite:///tidegate.db", "postgresql://u@h/log", "postgresql://u@h/log"),
        ("sqlite:///tidegate.db", "memory://", "memory://"),
    ],
)
def test_requests_are_kept_beside_the_database_or_where_the_settings_say(tmp_path: Path, sql: str, store: str | None, url: str) -> None:
    found = settings(tmp_path, sql, store=store).request_log_url
    assert found == url.replace("HOME", str(tmp_path.resolve()))


@pytest.mark.parametrize("store", ["mysql://u@h/d", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?x=1", "requests.db"])
def test_a_store_that_cannot_be_is_refused(tmp_path: Path, store: str) -> None:
    with pytest.raises(ValueError, match=r"request_log\.store"):
        settings(tmp_path, store=store)


async def test_each_store_is_made(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    store, prepare, close = request_store_for(settings(tmp_path))
    assert isinstance(store, SqlRequests)
    await prepare()
    await close()
    assert (tmp_path / "data" / "tidegate-requests.db").exists()
    assert isinstance(request_store_for(settings(tmp_path, store="memory://"))[0], MemoryRequests)


def test_a_folder_that_is_missing_is_named_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"request_log\.store: the folder of .*missing/log\.db' does not exist"):
        check_request_log(settings(tmp_path, store="sqlite:///missing/log.db"))
    check_request_log(settings(tmp_path, store="sqlite:///missing/log.db", enabled=False))
    check_request_log(settings(tmp_path, store="memory://"))
