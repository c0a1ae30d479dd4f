import pytest
from pydantic import ValidationError

from gateway.config.pools import DiscoverSettings, checked_networks
from gateway.config.settings import PoolSettings


@pytest.mark.parametrize(
    "good", [{"file": "b.yaml"}, {"dns": "engines.svc", "port": 8000}, {"dns": "_http._tcp.engines.svc", "record": "srv"}]
)
def test_one_place(good: dict[str, object]) -> None:
    DiscoverSettings.model_validate(good)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "names no place, or two"),
        ({"file": "b.yaml", "dns": "x", "port": 1}, "names no place, or two"),
        ({"dns": "x"}, "does not say which port"),
        ({"dns": "x", "record": "srv", "port": 80}, "does not say which port"),
        ({"dns": "a b", "port": 80}, "no usable host name"),
        ({"dns": "x", "port": 0}, "greater than or equal to 1"),
        ({"dns": "x", "port": 80, "record": "mx"}, "'a' or 'srv'"),
    ],
)
def test_what_is_wrong_is_said(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        DiscoverSettings.model_validate(wrong)


def test_networks() -> None:
    assert checked_networks(["10.0.0.0/8", "fc00::/7"]) == ["10.0.0.0/8", "fc00::/7"]
    for wrong in ("10.0.0.1/8", "example.com", "10.0.0.0/33"):
        with pytest.raises(ValueError, match=f"has '{wrong}', which is no network; write address/bits"):
            checked_networks(["10.0.0.0/8", wrong])


def test_a_pool_says_where_its_backends_are() -> None:
    PoolSettings.model_validate({"name": "p", "model": "m", "backends": []})
    PoolSettings.model_validate({"name": "p", "model": "m", "discover": {"file": "b.yaml"}})
    with pytest.raises(ValidationError, match="has no backends"):
        PoolSettings.model_validate({"name": "p", "model": "m"})
