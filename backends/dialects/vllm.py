"""vLLM's OpenAI server: recorded from 0.32; health is 503 only when the engine core is dead."""

from typing import Final

from backends.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    name="vllm",
    health_path="/health",
    models_path="/v1/models",
    takes_cache_salt=True,
    proven=False,
)
