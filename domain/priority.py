"""Priority classes: which requests are served first under overload. `tenancy.rights` and the tenant's policy say which are permitted."""

from enum import IntEnum
from typing import Final


class Class(IntEnum):
    """The priority class of a request. The lowest value is served first, the highest is shed first (load shedding)."""

    CRITICAL = 0
    """Shed last: people or other systems depend on the answer."""
    INTERACTIVE = 1
    """A person is waiting for the answer."""
    DEFAULT = 2
    BATCH = 3
    """Can wait for minutes, and be sent again."""

    @property
    def word(self) -> str:
        """The class's name in configuration, headers, logs and metrics."""
        return WORDS[self]


WORDS: Final = tuple(priority.name.lower() for priority in Class)
"""Names by value."""
CLASSES: Final = {priority.word: priority for priority in Class}
"""Classes by name."""
