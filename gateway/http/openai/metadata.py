"""Metadata of what is stored, as OpenAI has it: up to sixteen pairs of texts."""

from typing import Final

from gateway.http.openai.checks import refuse

MAX_METADATA: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512


def check_metadata(metadata: object) -> None:
    """Check metadata that is to be stored; None is none. Raises Fault: INVALID_VALUE."""
    if metadata is None:
        return
    fits = isinstance(metadata, dict) and len(metadata) <= MAX_METADATA
    if fits and all(_is_pair(key, value) for key, value in metadata.items()):  # type: ignore[attr-defined]  # it is a dict where it fits
        return
    refuse(
        f"'metadata' has at most {MAX_METADATA} pairs, with keys of {MAX_KEY_CHARS} and texts of {MAX_VALUE_CHARS} characters.", "metadata"
    )


def _is_pair(key: object, value: object) -> bool:
    return isinstance(key, str) and isinstance(value, str) and len(key) <= MAX_KEY_CHARS and len(value) <= MAX_VALUE_CHARS
