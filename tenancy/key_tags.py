"""Tags of API keys: names and values that operators set and policy rules match. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

MAX_TAGS: Final = 16
MAX_VALUE_CHARS: Final = 64
NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,31}", re.ASCII)
NAME_RULE: Final = "1 to 32 lower-case letters, digits, dots, dashes and underscores, beginning with a letter"

Tags = tuple[tuple[str, str], ...]
"""Names and values, sorted by name; a tuple, so that it cannot be changed."""


class BadTags(ValueError):
    """Tags that no key can have; the message says which and what to write."""


def tags_of(values: Mapping[str, str]) -> Tags:
    """The tags as stored, from values by name.

    Raises:
        BadTags: too many, or a name or value that is out of bounds.
    """
    if len(values) > MAX_TAGS:
        raise BadTags(f"{len(values)} tags; at most {MAX_TAGS} are kept")
    for name, value in values.items():
        if not NAME.fullmatch(name):
            raise BadTags(f"{ascii(name)[:64]} is no name of a tag; write {NAME_RULE}")
        if not 0 < len(value) <= MAX_VALUE_CHARS or not value.isprintable():
            raise BadTags(f"the value of tag {name!r}: write 1 to {MAX_VALUE_CHARS} printable characters")
    return tuple(sorted(values.items()))


def written_tags(words: Iterable[str]) -> dict[str, str]:
    """Parse tags written as `name=value`.

    Raises:
        BadTags: a word without `=`, or the same name twice.
    """
    tags: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadTags(f"{ascii(word)[:64]} is no tag; write name=value")
        if name in tags:
            raise BadTags(f"tag {name!r} is given twice; keep one")
        tags[name] = value
    return tags
