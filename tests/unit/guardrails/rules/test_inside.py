"""Rules inside encoded parts: what they find covers the part."""

import base64
import random

import pytest

from bench.guards.generated import checksummed
from guardrails.rules.inside import Inside
from guardrails.rules.secrets import Secrets
from guardrails.text import Text

RULE = Inside(Secrets("keys"), depth=2)


def test_a_key_in_layers_of_base64_is_found_as_the_outermost_part() -> None:
    token = checksummed(random.Random(4), "ghp_")
    part = f"value: {token}"
    for _ in range(2):
        part = base64.b64encode(part.encode()).decode()
        text = f"data:\n  {part}\nkind: Secret"
        (found,) = RULE.scan(Text(text))
        assert (found.kind, text[found.begin : found.end]) == ("github_token", part)
        assert Secrets("keys").scan(Text(text)) == ()


def test_what_stands_there_plainly_is_found_as_ever() -> None:
    token = checksummed(random.Random(4), "ghp_")
    assert RULE.scan(Text(token)) == Secrets("keys").scan(Text(token))
    assert RULE.longest is None
    assert RULE.id == "keys"


def test_depth_has_bounds() -> None:
    with pytest.raises(ValueError, match="depth is 4"):
        Inside(Secrets("keys"), depth=4)
