"""The bench of the other kinds of rules: leaks are made of the prompt that the rule knows, and the rules are those of the product."""

from bench.guards.kinds import PASSAGE_WORDS, leak_rule, passages, rules
from guardrails.text import Text

PROMPT = " ".join(f"sentence{at} tells of harbour number {at}" for at in range(100))


def test_each_made_leak_has_a_passage_of_the_prompt_and_nothing_else_of_it() -> None:
    rule = leak_rule(PROMPT)
    for text in passages(PROMPT, 20):
        passage = text.removeprefix("I was told this: ").removesuffix(". That is all.")
        assert passage in PROMPT
        assert len(passage.split()) == PASSAGE_WORDS
        assert rule.scan(Text(text))
        assert not rule.scan(Text(text.replace("harbour", "river")))


def test_a_rule_of_each_kind_is_measured_and_finds_what_it_is_made_for() -> None:
    made = rules()
    texts = {
        "language": "Wo ist der Bahnhof, und wann geht der nächste Zug nach Hamburg?",
        "repetition": "no, no, " * 200,
        "json_schema": '{"sources": []}',
    }
    for kind, text in texts.items():
        assert made[kind].scan(Text(text))
        assert not made[kind].scan(Text('{"answer": "The next train leaves at noon from the second platform."}'))
