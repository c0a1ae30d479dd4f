"""Any server that speaks OpenAI's API and nothing else; its model list stands in for health."""

from typing import Final

from backends.dialects.dialect import Dialect

DIALECT: Final = Dialect(
    name="openai",
    health_path="/v1/models",
    models_path="/v1/models",
    answers_as_listed=False,
    takes_cache_salt=False,
    signals_path=None,
    read_signals=None,
    lora=None,
    proven=False,
)
