"""What a query asks of the events of a Response in the background."""

import pytest

from domain.faults import Fault, Kind
from gateway.request.background_reads import events_asked


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ({}, None),
        ({"stream": "false"}, None),
        ({"stream": "true"}, -1),
        ({"stream": "True"}, -1),
        ({"stream": "true", "starting_after": "0"}, 0),
        ({"stream": "true", "starting_after": "1234567890"}, 1_234_567_890),
        ({"include": "message.output_text.logprobs"}, None),
    ],
)
def test_a_query_says_whether_events_are_wanted_and_behind_which(query: dict[str, str], after: int | None) -> None:
    assert events_asked(query) == after


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"stream": "1"}, "stream"),
        ({"starting_after": "3"}, "starting_after"),
        ({"stream": "false", "starting_after": "3"}, "starting_after"),
        *(({"stream": "true", "starting_after": number}, "starting_after") for number in ("-1", "x", "", "1.5", "٣", "12345678901")),
    ],
)
def test_what_is_no_number_of_an_event_is_refused_by_name(query: dict[str, str], param: str) -> None:
    with pytest.raises(Fault) as caught:
        events_asked(query)
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, param)
