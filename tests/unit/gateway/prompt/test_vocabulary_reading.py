"""A prompt's ids as far as they are there."""

from array import array

from gateway.prompt.vocabulary import TokenReading


def test_it_grows_from_the_front_and_counts_what_is_behind() -> None:
    reading = TokenReading()
    assert (reading.tokens, list(reading.ids()), reading.whole) == (0, [], False)
    reading.add(array("I", [1, 2]))
    reading.add(array("I", [3]))
    reading.more(10)
    assert (reading.tokens, list(reading.ids())) == (13, [1, 2, 3])
