import pytest
from pydantic import ValidationError

from backends.launch.config import Hardware, laid_over


def test_members_are_laid_over_one_by_one_and_null_takes_away() -> None:
    shared = {"version": "1", "flags": {"a": 1, "b": 2, "c": {"x": 1}}, "environment": {"E": "1"}}
    own = {"name": "n", "version": "2", "flags": {"b": 3, "a": None, "c": {"y": 2}}}
    assert laid_over(shared, own) == {
        "name": "n",
        "version": "2",
        "flags": {"b": 3, "c": {"y": 2}},
        "environment": {"E": "1"},
        "parameters": {},
    }
    assert shared["flags"] == {"a": 1, "b": 2, "c": {"x": 1}}


def test_what_is_no_mapping_is_left_for_the_model_to_refuse() -> None:
    assert laid_over({"flags": {}}, {"flags": 3})["flags"] == 3


def test_numbers_are_bounded() -> None:
    with pytest.raises(ValidationError):
        Hardware(gpus=1000)
