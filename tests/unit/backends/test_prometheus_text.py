import contextlib

import pytest

from backends.prometheus_text import MAX_PARTS, SEARCH_EVERY, PrometheusSample, SeriesPlaces, WantedSeries

PAGE = rb"""# HELP a_total What a counts.
# TYPE a_total counter
a_total{x="1",y="two"} 3.0
a_total{x="2"} 4
a_total_more 9
b 1.5e3
b_bucket{le="+Inf"} 7
weird{q="say \"hi\", {x}=\\1\nend",r="}"} 5 1700000000000
never NaN
endless +Inf
broken
"""


def test_only_what_is_wanted_is_found_and_names_are_whole() -> None:
    found = WantedSeries(["a_total", "b", "missing"]).find(PAGE)
    assert found == {
        "a_total": [PrometheusSample({"x": "1", "y": "two"}, 3.0), PrometheusSample({"x": "2"}, 4.0)],
        "b": [PrometheusSample({}, 1500.0)],
    }


def test_labels_may_hold_anything_and_a_time_stamp_may_follow() -> None:
    (sample,) = WantedSeries(["weird"]).find(PAGE)["weird"]
    assert sample == PrometheusSample({"q": 'say "hi", {x}=\\1\nend', "r": "}"}, 5.0)


def test_never_is_not_a_number_of_anything() -> None:
    assert WantedSeries(["never", "endless", "broken"]).find(PAGE) == {}


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b"\xff\xfe\x00", b"a_total", b"a_total{", b'a_total{x="', b"a_total{x=1} 2", b"a_total {} x"]
)
def test_whatever_comes_instead_is_no_sample(page: bytes) -> None:
    assert WantedSeries(["a_total"]).find(page) in ({}, {"a_total": [PrometheusSample({}, 2.0)]})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (rb"\\n", r"\n"),
        (rb"\\\n", "\\\n"),
        (rb"\n0\n1", "\n0\n1"),
        (rb"\\0\\1", r"\0\1"),
        (rb"\\\"", '\\"'),
        (rb"\t", r"\t"),
    ],
)
def test_escapes_mean_what_the_format_says(written: bytes, meant: str) -> None:
    (sample,) = WantedSeries(["a"]).find(b'a{x="' + written + b'"} 1')["a"]
    assert sample.labels == {"x": meant}


@pytest.mark.parametrize(
    ("begin", "again", "end"),
    [
        (b'a{x="', b'\\"', b""),
        (b'a{x="', b"\\\\", b'"} 1'),
        (b"a{", b'"",', b""),
        (b"a{", b"x", b"} 1"),
        (b"a{", b" ", b"} 1"),
        (b"a{", b"x=", b"} 1"),
        (b"", b'\na{"', b""),
        (b'a{x="', b"\n", b""),
    ],
    ids=["escaped quotes", "escapes", "quotes", "a name", "spaces", "no values", "open labels", "line breaks"],
)
def test_a_page_of_one_thing_is_read_in_linear_time(begin: bytes, again: bytes, end: bytes) -> None:
    """Quadratic work on any of them would take minutes."""
    page = begin + again * (1_000_000 // len(again)) + end
    with contextlib.suppress(ValueError):
        assert len(WantedSeries(["a"]).find(page)) <= 1


@pytest.mark.parametrize("line", [b"a 1\n", b"a {\n", b"abc 1\n", b'a{x="1"} 1\n', b'a{x="1",x="1",x="1",x="1"} 1\n', b'a{x="1",x="1"\n'])
def test_what_a_page_may_cost_is_bounded_by_its_lines_and_labels_too(line: bytes) -> None:
    parts = 1 + (line.count(b"x=") if b"}" in line else 0)
    WantedSeries(["a"]).find(line * (MAX_PARTS // parts))
    with pytest.raises(ValueError, match="more than 10,000 lines and labels"):
        WantedSeries(["a", "b"]).find(line * (MAX_PARTS // parts) + b"\n" + line + b'b{x="1"} 2\n' * 2)


WANTED = WantedSeries(["a_total", "b", "weird", "new", "never", "broken"])


def remembered() -> SeriesPlaces:
    places = SeriesPlaces()
    WANTED.find(b"# page\n" + PAGE, places)
    return places


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b""),
        (b" 3.0", b" 3000000000.5"),
        (b"# HELP a_total What a counts.", b"# HELP a_total " + b"x" * 200),
        (b"never NaN", b"never 4"),
        (b" 1.5e3", b"\t7 1700000000000"),
        (b" 4\n", b" +Inf\n"),
    ],
)
def test_lines_are_found_where_they_were_though_numbers_before_them_have_other_lengths(before: bytes, after: bytes) -> None:
    page = (b"# page\n" + PAGE).replace(before, after)
    assert remembered().again(page) == WANTED.find(page) != {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'a_total{x="2"} 4\n', b""),
        (b'a_total{x="2"} 4', b'a_total{x="3"} 4'),
        (b"a_total_more 9", b'a_total{x="3"} 9'),
        (b"b 1.5e3\n", b"b 1.5e3\nb 2\n"),
        (b"b 1.5e3", b"b"),
        (b"# page", b"# page" + b"x" * 1000),
        (b"\n", b"\r"),
    ],
)
def test_a_page_with_other_lines_is_searched_whole(before: bytes, after: bytes) -> None:
    page = (b"# page\n" + PAGE).replace(before, after)
    places = remembered()
    assert places.again(page) is None
    assert WANTED.find(page, places) == WANTED.find(page)


def test_a_name_that_comes_while_another_line_goes_is_found_within_some_pages() -> None:
    page = (b"# page\n" + PAGE).replace(b"a_total_more 9", b"new 9")
    places = remembered()
    found = ["new" in WANTED.find(page, places) for _ in range(SEARCH_EVERY + 1)]
    assert found == [False] * SEARCH_EVERY + [True]


def test_a_wanted_line_at_the_very_beginning_is_read_where_it_is_while_it_is_there() -> None:
    places = SeriesPlaces()
    WANTED.find(b"b 1\nc 1\n", places)
    for value in (2, 30, 4):
        assert places.again(b"b %d\nc 1\n" % value) == {"b": [PrometheusSample({}, float(value))]}
    for page in (b"bb 5\nb 2\n", b"c 1\nb 2\n", b"\nb 2\n", b"x b 2\nc 1\n"):
        assert places.again(page) is None
        assert WANTED.find(page, SeriesPlaces()) == WANTED.find(page)
