import pytest

from tenancy.keys import MAX_TAG_VALUE_CHARS, MAX_TAGS, BadTags, tags_of, written_tags


def test_tags_are_kept_by_name() -> None:
    assert tags_of(written_tags(["team=search", "cost.center=42=x"])) == (("cost.center", "42=x"), ("team", "search"))
    assert tags_of({}) == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({f"t{n}": "x" for n in range(MAX_TAGS + 1)}, "at most 16"),
        ({"Team": "x"}, "'Team' is no name of a tag; write 1 to 32 lower-case"),
        ({"team\n": "x"}, "is no name of a tag"),
        ({"team": ""}, "the value of tag 'team'"),
        ({"team": "x" * (MAX_TAG_VALUE_CHARS + 1)}, "1 to 64 printable"),
        ({"team": "a\nb"}, "1 to 64 printable"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_what_to_write(given: dict[str, str], says: str) -> None:
    with pytest.raises(BadTags, match=says):
        tags_of(given)


@pytest.mark.parametrize(("words", "says"), [(["team"], "write name=value"), (["a=1", "a=2"], "'a' is given twice")])
def test_words_that_are_no_tags_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(BadTags, match=says):
        written_tags(words)
