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
