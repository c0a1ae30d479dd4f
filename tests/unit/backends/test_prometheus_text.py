import pytest

from backends.prometheus_text import MAX_SAMPLES, Sample, Wanted

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
    found = Wanted(["a_total", "b", "missing"]).find(PAGE)
    assert found == {"a_total": [Sample({"x": "1", "y": "two"}, 3.0), Sample({"x": "2"}, 4.0)], "b": [Sample({}, 1500.0)]}


def test_labels_may_hold_anything_and_a_time_stamp_may_follow() -> None:
    (sample,) = Wanted(["weird"]).find(PAGE)["weird"]
    assert sample == Sample({"q": 'say "hi", {x}=\\1\nend', "r": "}"}, 5.0)


def test_never_is_not_a_number_of_anything() -> None:
    assert Wanted(["never", "endless", "broken"]).find(PAGE) == {}


@pytest.mark.parametrize(
    "page", [b"", b"<html>", b"\xff\xfe\x00", b"a_total", b"a_total{", b'a_total{x="', b"a_total{x=1} 2", b"a_total {} x"]
)
def test_whatever_comes_instead_is_no_sample(page: bytes) -> None:
    assert Wanted(["a_total"]).find(page) in ({}, {"a_total": [Sample({}, 2.0)]})


def test_a_page_of_nothing_but_quotes_is_read_in_linear_time() -> None:
    assert Wanted(["a"]).find(b'a{x="' + b'\\"' * 500_000) == {}
    assert Wanted(["a"]).find(b"a{" + b'"",' * 300_000) == {}


def test_a_series_without_end_is_refused_by_its_name() -> None:
    assert len(Wanted(["a"]).find(b"a 1\n" * MAX_SAMPLES)["a"]) == MAX_SAMPLES
    with pytest.raises(ValueError, match="series a has more than 10,000 samples"):
        Wanted(["a"]).find(b"a 1\n" * (MAX_SAMPLES + 1))
