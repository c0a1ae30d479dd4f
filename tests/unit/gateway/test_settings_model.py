import pytest
from pydantic import ValidationError

from gateway.settings_model import DataSettings, EngineSettings, PoolSettings, SecretReference, SecretSettings, StoreSettings


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "2", None, True])
def test_seconds_are_positive_finite_numbers(value):
    with pytest.raises(ValidationError):
        EngineSettings(connect_timeout_s=value)


def test_whole_numbers_do_for_seconds():
    assert EngineSettings(connect_timeout_s=3).connect_timeout_s == 3.0


def test_a_heartbeat_may_be_off():
    assert EngineSettings(heartbeat_s=0).heartbeat_s == 0


def test_a_secret_reference_names_exactly_one_place():
    assert SecretReference(env="A_KEY").file is None
    for wrong in ({}, {"file": "a", "env": "B"}, {"file": ""}, {"env": "not a name"}, {"value": "x"}, "literal", 5):
        with pytest.raises(ValidationError):
            SecretReference.model_validate(wrong)


def test_an_unfilled_pepper_is_none_and_an_empty_one_a_mistake():
    assert SecretSettings.model_validate({"pepper": {"file": None, "env": None}}).pepper is None
    with pytest.raises(ValidationError):
        SecretSettings.model_validate({"pepper": {}})


@pytest.mark.parametrize(
    "url", ["", "x", "sqlite://", "sqlite:///:memory:", "mysql://a/b", "postgresql+asyncpg://a/b", "postgresql://a:x/b"]
)
def test_databases_that_are_refused(url):
    with pytest.raises(ValidationError, match="; write sqlite"):
        StoreSettings(sql=url)


def test_pools_and_backends():
    def backend(id="a"):
        return {"id": id, "url": "http://a:1"}

    pool = PoolSettings.model_validate({"name": "p", "model": "m", "backends": [backend()]})
    assert (pool.revision, pool.dialect, pool.api_key) == ("1", "vllm", None)
    for wrong in (
        {"backends": [backend("-a")]},
        {"backends": [backend("a b")]},
        {"name": ""},
        {"revision": 1},
        {"dialect": "ollama"},
    ):
        with pytest.raises(ValidationError):
            PoolSettings.model_validate({"name": "p", "model": "m", "backends": [backend()]} | wrong)


def test_hosts_and_origins_are_checked():
    with pytest.raises(ValidationError):
        DataSettings(hosts=["ä"])
    with pytest.raises(ValidationError):
        DataSettings(cors_origins=["example.com"])
