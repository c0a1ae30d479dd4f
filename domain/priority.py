"""How soon a request is served when not all can be: its class. Who may have which is `tenancy.rights` and the tenant's policy."""

from enum import IntEnum
from typing import Final


class Class(IntEnum):
    """Of a request, from the one that is served first to the one that is shed first: lower is sooner."""

    CRITICAL = 0
    """Fails last: what people or other systems cannot do without."""
    INTERACTIVE = 1
    """Somebody is waiting."""
    DEFAULT = 2
    BATCH = 3
    """Can wait for minutes, and be asked again."""

    @property
    def word(self) -> str:
        """As it stands in configuration, headers, logs and metrics."""
        return WORDS[self]


WORDS: Final = tuple(priority.name.lower() for priority in Class)
"""By value."""
CLASSES: Final = {priority.word: priority for priority in Class}
"""By word."""
