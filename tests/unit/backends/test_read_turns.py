"""A large piece ends a connection's turn."""

import asyncio

from backends.read_turns import take_turns


class Transport(asyncio.Transport):
    """Whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closing = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing


async def test_reading_goes_on_with_the_next_turn() -> None:
    transport = Transport()
    take_turns(transport, lambda: True)
    assert not transport.reading
    await asyncio.sleep(0)
    assert transport.reading


async def test_reading_does_not_go_on_where_that_is_not_wanted_or_not_possible_any_more() -> None:
    unwanted, closed = Transport(), Transport()
    take_turns(unwanted, lambda: False)
    take_turns(closed, lambda: True)
    closed.closing = True
    await asyncio.sleep(0)
    assert not unwanted.reading
    assert not closed.reading
