"""llama.cpp's server: answers 200 to an unknown model, 500 to broken JSON, and has no cache salt."""

from typing import Final

from backends.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    name="llamacpp",
    health_path="/health",
    models_path="/v1/models",
    takes_cache_salt=False,
    proven=True,
)
