import pytest
from pydantic import ValidationError

from gateway.config.pools import PoolSettings


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


P, D, W = ({"id": role, "url": f"http://{role}:1", "role": role} for role in ("prefill", "decode", "both"))
PAIRED = {"name": "p", "model": "m", "backends": [P, D], "disaggregation": {"kv_bytes_token": 1000, "bandwidth_gb_s": 10.0}}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ({"scale": {}}, "as decode and prefill engines may not; write scale_roles"),
        ({"scale": {}, "backends": [], "discover": {"dns": "e.example", "port": 8000}}, "as discovered engines may not; write scale_roles"),
        ({"scale": {}, "scale_roles": {"prefill": {}}}, "stands beside scale; keep scale_roles"),
        (
            {"scale_roles": {"decode": {}}, "disaggregation": None, "backends": [W]},
            "needs disaggregation, without which engines have no roles",
        ),
        ({"scale_roles": {"decode": {"min": 0}}}, "greater than or equal to 1"),
        ({"scale_roles": {"decode": {"to_zero": {}}}}, "to_zero\n  Extra inputs are not permitted"),
        ({"scale_roles": {"decode": {"min": 7, "max": 3}}}, "min is 7 and max 3"),
        ({"scale_roles": {"decoder": {}}}, "Input should be 'both', 'prefill' or 'decode'"),
    ],
)
def test_bounds_of_scaling_are_of_the_pool_or_of_its_roles(written: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PoolSettings.model_validate(PAIRED | written)


def test_pools_of_prefill_and_decode_engines_have_bounds_by_role() -> None:
    pool = PoolSettings.model_validate(PAIRED | {"scale_roles": {"prefill": {"max": 4}, "decode": {"kv": 0.9}}})
    assert {role: bounds.max for role, bounds in pool.scale_roles.items()} == {"prefill": 4, "decode": 100}
    assert PoolSettings.model_validate(PAIRED | {"backends": [W, W | {"id": "w"}], "scale": {}}).scale is not None
