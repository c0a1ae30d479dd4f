"""What a request says of the cache."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.answers.controls import NO_CONTROLS, CacheControls, controls_of


@pytest.mark.parametrize(
    ("headers", "member", "said"),
    [
        ({}, None, NO_CONTROLS),
        ({b"cache-control": b"no-cache"}, None, CacheControls(read=False)),
        ({b"cache-control": b"No-Store, max-age=5"}, None, CacheControls(read=False, write=False, max_age_s=5.0)),
        ({b"cache-control": b"only-if-cached"}, None, CacheControls(only=True)),
        ({b"cache-control": b"max-age=nonsense, private"}, None, NO_CONTROLS),
        ({b"x-tidegate-cache-ttl": b"60"}, None, CacheControls(ttl_s=60.0)),
        ({b"x-tidegate-cache-namespace": b"release-7"}, None, CacheControls(namespace="release-7")),
        ({}, {"no-cache": True}, CacheControls(read=False)),
        ({}, {"no-store": True}, CacheControls(write=False)),
        ({}, {"ttl": 30, "s-maxage": 60, "namespace": "n"}, CacheControls(ttl_s=30.0, max_age_s=60.0, namespace="n")),
        ({}, {"use-cache": True, "no-cache": False}, NO_CONTROLS),
    ],
)
def test_what_is_said(headers: dict[bytes, bytes], member: object, said: CacheControls) -> None:
    assert controls_of(headers, member) == said


@pytest.mark.parametrize(
    ("headers", "member", "param"),
    [
        ({b"x-tidegate-cache-ttl": b"soon"}, None, "x-tidegate-cache-ttl"),
        ({b"x-tidegate-cache-namespace": b"no spaces"}, None, "x-tidegate-cache-namespace"),
        ({b"x-tidegate-cache-namespace": b"x" * 65}, None, "x-tidegate-cache-namespace"),
        ({}, True, "cache"),
        ({}, {"ttl": -1}, "cache.ttl"),
        ({}, {"ttl": True}, "cache.ttl"),
        ({}, {"no-cache": "yes"}, "cache.no-cache"),
        ({}, {"namespace": 5}, "cache.namespace"),
        ({}, {"similarity": 0.5}, "cache"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(headers: dict[bytes, bytes], member: Any, param: str) -> None:
    with pytest.raises(Fault) as raised:
        controls_of(headers, member)
    assert raised.value.kind in (Kind.INVALID_VALUE, Kind.UNSUPPORTED_PARAMETER)
    assert raised.value.param == param
