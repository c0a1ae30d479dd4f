"""Gates of the built-in rules: what each matches is bounded, so that a scan of any text takes time in proportion to its length."""

from re import _parser  # type: ignore[attr-defined]  # the parser alone knows how wide an expression is

import pytest

from guardrails.rules.gate import Gate
from guardrails.rules.links import Links
from guardrails.rules.national_ids import COUNTRIES
from guardrails.rules.pii import Pii
from guardrails.rules.secrets import Secrets

RULES = [Secrets("r"), Pii("r", regions=sorted(COUNTRIES)), Links("r"), Links("r", ["example.com"])]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_no_gate_matches_more_than_its_bound(rule: Secrets | Pii | Links) -> None:
    gate: Gate = rule._gate
    assert gate.expressions
    assert [expression for expression in gate.expressions if _parser.parse(expression).getwidth()[1] > 256] == []
