"""Stories for tests of whatever reads them: each fact by its name, wherever in the Story it is kept."""

from typing import Any

from gateway.story import Story

SLICES = ("asked", "placed", "tried", "attempt", "settled")


def with_facts(story: Story, **facts: Any) -> Story:
    """The Story with these facts; of a name that two slices have, the one in the earlier slice."""
    for name, value in facts.items():
        place = next((one for one in (story, *(getattr(story, part) for part in SLICES)) if name in one.__struct_fields__), None)
        assert place is not None, f"no slice of a Story has {name}"
        setattr(place, name, value)
    return story
