from pathlib import Path

import pytest
from pydantic import ValidationError

from domain.priority import Class
from gateway.config.listeners import DataSettings
from gateway.config.load import Settings
from gateway.config.settings import CacheSettings, EngineSettings, QueueSettings, RoutingSettings, StoreSettings
from routing.fair_queue import QueueBounds
from tenancy.counter_url import StoreKind


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_seconds_are_positive_finite_numbers(value):
    with pytest.raises(ValidationError):
        EngineSettings(connect_timeout_s=value)


def test_whole_numbers_do_for_seconds():
    assert EngineSettings(connect_timeout_s=3).connect_timeout_s == 3.0


def test_a_heartbeat_may_be_off():
    assert EngineSettings(heartbeat_s=0).heartbeat_s == 0


@pytest.mark.parametrize(
    "url", ["", "x", "sqlite://", "sqlite:///:memory:", "mysql://a/b", "postgresql+asyncpg://a/b", "postgresql://a:x/b"]
)
def test_databases_that_are_refused(url):
    with pytest.raises(ValidationError, match="; write sqlite"):
        StoreSettings(sql=url)


@pytest.mark.parametrize("url", ["memory://", "valkey+embedded://"])
def test_answers_are_shared_on_a_server(url):
    with pytest.raises(ValidationError, match="names no server; leave it out to keep answers in memory"):
        CacheSettings(store=url)


def test_hosts_and_origins_are_checked():
    with pytest.raises(ValidationError):
        DataSettings(hosts=["ä"])
    with pytest.raises(ValidationError):
        DataSettings(cors_origins=["example.com"])


def test_the_index_is_bounded_in_both_directions() -> None:
    assert RoutingSettings().index_blocks == 1_000_000
    for blocks in (1023, 100_000_001, 1.5, "many"):
        with pytest.raises(ValidationError):
            RoutingSettings.model_validate({"index_blocks": blocks})


def test_nobody_gives_way_unless_it_is_written() -> None:
    assert QueueSettings().gives_way is None
    assert QueueSettings(preempt="none").gives_way is None
    assert QueueSettings(preempt="batch").gives_way is Class.BATCH
    assert QueueSettings(preempt="default").gives_way is Class.DEFAULT


def test_what_people_and_systems_cannot_do_without_never_gives_way() -> None:
    for word in ("critical", "interactive"):
        with pytest.raises(ValidationError):
            QueueSettings.model_validate({"preempt": word})


def test_the_bounds_of_the_settings_are_those_of_the_queue() -> None:
    assert QueueSettings().bounds == QueueBounds()
    assert QueueSettings(max_requests=5, max_bytes=6, max_requests_per_tenant=3, max_bytes_per_tenant=2048).bounds == QueueBounds(
        5, 6, 3, 2048
    )


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
