"""SGLang's OpenAI server: recorded from 0.5.23; answers 200 to an unknown model and serves it."""

from typing import Final

from backends.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    name="sglang",
    health_path="/health",
    models_path="/v1/models",
    takes_cache_salt=True,
    proven=False,
)
