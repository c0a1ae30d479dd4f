import pytest
from pydantic import ValidationError

from gateway.config.settings import DataSettings, EngineSettings, StoreSettings


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


def test_hosts_and_origins_are_checked():
    with pytest.raises(ValidationError):
        DataSettings(hosts=["ä"])
    with pytest.raises(ValidationError):
        DataSettings(cors_origins=["example.com"])
