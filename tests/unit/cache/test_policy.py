"""The policy of similar questions: contradictions are refused with what to write."""

from typing import Any

import pytest
from pydantic import ValidationError

from cache.policy import CachePolicy


def test_similar_questions_are_off_by_default() -> None:
    assert CachePolicy().semantic is None


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"semantic": {"decision": "threshold"}}, "has decision: threshold without threshold"),
        ({"semantic": {"threshold": 0.9}}, "has a threshold; write decision: threshold as well"),
        ({"semantic": {"wrong_per_hit": 0.5}}, "less than or equal to 0.2"),
        ({"semantic": {"decision": "threshold", "threshold": 0.2}}, "greater than or equal to 0.5"),
        ({"semantic": {"never": {"time": [""]}}}, "at least 1 character"),
        ({"semantic": {}, "exact": False}, "leave exact: true"),
    ],
)
def test_contradictions_are_refused(written: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        CachePolicy.model_validate(written)
