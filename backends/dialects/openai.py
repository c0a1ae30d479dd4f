"""Any server that speaks OpenAI's API and nothing else; its model list stands in for health."""

from typing import Final

from backends.dialects.dialect import Dialect, ErrorShape
from backends.dialects.fields import OPEN

DIALECT: Final = Dialect(
    name="openai",
    known_from="OpenAI's API reference",
    health_path="/v1/models",
    models_path="/v1/models",
    answers_as_listed=False,
    isolation=None,
    signals_path=None,
    read_signals=None,
    priority=None,
    lora_model=None,
    lora=None,
    errors=frozenset({ErrorShape.OBJECT}),
    fields=OPEN,
    drains="",
    proven=False,
    pools_messages=True,
)
