"""The model list in the shape of the Messages API."""

import json

from gateway.http.anthropic.models import render_messages_model, render_messages_models
from gateway.http.openai.models import ModelFacts


def test_models() -> None:
    row = {"type": "model", "id": "a", "display_name": "a", "created_at": "2027-01-15T08:00:00Z", "lifecycle": "active"}
    known = row | {"max_input_tokens": 4096, "max_tokens": 4096}
    one = json.loads(render_messages_model(ModelFacts("a", context_tokens=4096), 1_800_000_000))
    assert one == known
    answer = json.loads(render_messages_models([ModelFacts("a", context_tokens=4096), ModelFacts("b")], 1_800_000_000))
    assert answer == {
        "data": [known, row | {"id": "b", "display_name": "b", "max_input_tokens": None, "max_tokens": None}],
        "first_id": "a",
        "last_id": "b",
        "has_more": False,
    }
    assert json.loads(render_messages_models([], 0)) == {"data": [], "first_id": None, "last_id": None, "has_more": False}
