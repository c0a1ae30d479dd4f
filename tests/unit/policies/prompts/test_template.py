import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from policies.prompts import template
from policies.prompts.template import MAX_WORK_CHARS, TooLong, template_of
from policies.prompts.variables import VariableField

READ = TypeAdapter(VariableField)
DECLARED = {
    "name": {"type": "string"},
    "n": {"type": "integer"},
    "vip": {"type": "boolean"},
    "tone": {"type": "enum", "values": ["dry", "warm"]},
    "parts": {"type": "list"},
}
VARIABLES = {name: READ.validate_python(one) for name, one in DECLARED.items()}
VALUES = {"name": "{{ n }}<&\"'", "n": 5, "vip": True, "tone": "dry", "parts": ["x", "y"]}


def rendered(source, room=1000, **values):
    made, _, mistakes = template_of(source, VARIABLES)
    assert made is not None, mistakes
    return made.render({**VALUES, **values}, room)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Hi {{ name }}", "Hi {{ n }}<&\"'"),
        ("{{ name | tojson }}", '"{{ n }}<&\\"\'"'),
        ("{% for p in parts %}{{ loop.index }}{{ p }}{% if not loop.last %},{% endif %}{% endfor %}", "1x,2y"),
        ("{% for p in [] %}{% endfor %}", None),
        ("{% for p in ['a', 'b'] %}{{ p }}{% else %}none{% endfor %}", "ab"),
        ("{% for p in parts %}{% for q in parts %}{{ p }}{{ q }} {% else %}{{ loop.index }}{% endfor %}{% endfor %}", "xx xy yx yy "),
        ("{{ parts | join('; ') }} {{ parts | length }}", "x; y 2"),
        ("{% if vip and n >= 5 and tone in ['dry', 'wet'] %}yes{% else %}no{% endif %}", "yes"),
        ("{{ 'a' if n < -1 else tone | upper }}", "DRY"),
        ("{{ name or 'friend' }}", "{{ n }}<&\"'"),
        ("{% raw %}{{ x }}{% endraw %}{# not this #}", "{{ x }}"),
        ("a\n{% if vip %}\nb\n{% endif %}\nc", "a\nb\nc"),
    ],
)
def test_what_the_language_can_do(source, text):
    if text is None:
        assert template_of(source, VARIABLES)[0] is None
    else:
        assert rendered(source) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ ''.__class__.__mro__ }}", "looking into a value is not allowed"),
        ("{{ name.upper() }}", "a call is not allowed"),
        ("{{ parts[0] }}", "looking into a value is not allowed"),
        ("{{ name | attr('__class__') }}", "there is no filter 'attr'"),
        ("{{ '%s' | format(name) }}", "there is no filter 'format'"),
        ("{{ '%s' % name }}", "arithmetic is not allowed"),
        ("{{ 'a' * 1000000000 }}", "arithmetic is not allowed"),
        ("{{ 9 ** 9 ** 9 }}", "arithmetic is not allowed"),
        ("{{ name ~ name }}", "joining with ~ is not allowed"),
        ("{{ range(9) }}", "a call is not allowed"),
        ("{{ lipsum }}", "there is no variable 'lipsum'"),
        ("{{ self }}", "there is no variable 'self'"),
        ("{{ loop.index }}", "looking into a value is not allowed"),
        ("{% for p in parts %}{{ loop.cycle('a') }}{% endfor %}", "a call is not allowed"),
        ("{% for p in parts %}{{ loop.__class__ }}{% endfor %}", "looking into a value is not allowed"),
        ("{% for p in parts recursive %}{% endfor %}", "a loop with a condition or recursion"),
        ("{% for p in name %}{% endfor %}", "goes through something other than a list"),
        ("{% for name in parts %}{% endfor %}", "needs one new name"),
        ("{% for a, b in parts %}{% endfor %}", "needs one new name"),
        ("{% set a = 1 %}", "an assignment is not allowed"),
        ("{% include 'x' %}", "an include is not allowed"),
        ("{% import 'x' as x %}", "an import is not allowed"),
        ("{% extends 'x' %}", "extending another template is not allowed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}", "a macro is not allowed"),
        ("{% filter upper %}{% endfilter %}", "is not allowed"),
        ("{% autoescape true %}{% endautoescape %}", "is not allowed"),
        ("{% break %}", "unknown tag 'break'"),
        ("{{ name is defined }}", "a test with `is`"),
        ("{{ none }}", "none is no value here"),
        ("{{ 1e999 }}", "a number that is too large"),
        ("{{ " + "9" * 6000 + " }}", "too long"),
        ("{{ 0x" + "f" * 6000 + " }}", "a number that is too large"),
        ("{{ " + "(" * 5000, "nested too deep"),
        ("{{ " + "not " * 5000 + "vip }}", "nested too deep"),
        ("{{ name" + " | upper" * 3000 + " }}", "more than 32 deep"),
        ("{% if vip %}" * 30 + "{% endif %}" * 30, "more than 8 blocks within each other"),
        ("{{ name | upper(3) }}", "takes nothing in brackets"),
        ("{{ parts | join }}", "takes one text in quotes"),
        ("{{ name | tojson | tojson }}", "the filter tojson is not for a json"),
        ("{{ name == n }}", "compares a text with a number"),
        ("{% if vip < true %}{% endif %}", "compares a boolean with a boolean"),
        ("{{ name or n }}", "prints values of different kinds"),
        ("{{ vip }}", "prints true or false"),
        ("{{ parts }}", "prints a list"),
        ("{{ nam }}", "there is no variable 'nam'; declared are: name, n, vip, tone, parts"),
        ("{{ name", "cannot be read"),
    ],
    ids=lambda text: text[:40],
)
def test_what_it_cannot_do_is_refused_when_it_is_read(source, words):
    made, _, mistakes = template_of(source, VARIABLES)
    assert made is None
    assert any(words in f"{one.message}; {one.hint}" for one in mistakes), mistakes


def test_mistakes_have_their_lines_and_come_together():
    _, _, mistakes = template_of("{{ nam }}\n\n{{ parts }}\n{% if vip %}{{ f() }}{% endif %}", VARIABLES)
    assert [one.line for one in mistakes] == [1, 3, 4]


def test_variables_that_are_named_are_told():
    assert template_of("{{ name }}{% if vip %}{% endif %}", VARIABLES)[1] == {"name", "vip"}


def test_the_sandbox_has_nothing_in_it_but_the_filters():
    made = template._ENVIRONMENT
    assert made.globals == {} == made.tests
    assert set(made.filters) == {"join", "length", "lower", "tojson", "trim", "upper"}
    assert made.loader is None


def test_what_is_too_long_is_cut_off_at_once():
    with pytest.raises(TooLong):
        rendered("{% for p in parts %}{{ p }}{% endfor %}", room=10, parts=["x" * 6, "y" * 6])
    assert rendered("{{ name }}", room=3, name="abc") == "abc"


def test_the_longest_rendering_is_known_before_anybody_asks_for_it():
    widest = {"a": READ.validate_python({"type": "list", "max_items": 256, "max_length": 200})}
    loops = "{% for x in a %}{% for y in a %}{% if x == y %}.{% endif %}{% endfor %}{% endfor %}"
    assert template_of(loops, widest)[2][0].message.startswith("could take")
    fewer = {"a": READ.validate_python({"type": "list", "max_items": 80, "max_length": 200})}
    made, _, mistakes = template_of(loops, fewer)
    assert mistakes == []
    begun = time.process_time()
    assert len(made.render({"a": ["x" * 199 + str(n % 10) for n in range(80)]}, MAX_WORK_CHARS)) < 80**2
    assert time.process_time() - begun < 2


WORDS = (
    "{{ }} {% %} if for in end endif endfor else name parts n vip loop.index x |upper |join(',') |tojson "
    "== < 'a' 3 - ( ) [ ] . and or not {# #}"
)
PIECES = st.sampled_from([f" {word} " for word in WORDS.split()] + ["\n"])
BLOCKS = st.recursive(
    st.sampled_from(
        ["{{ name }}", "{{ n }}", "{{ parts | join(',') }}", "{{ x }}", "{{ loop.index }}", "{{ name if vip else tone }}", "text\n"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        .map("".join)
        .flatmap(
            lambda body: st.sampled_from(
                [
                    "{% if vip %}" + body + "{% endif %}",
                    "{% for x in parts %}" + body + "{% else %}" + body + "{% endfor %}",
                    "{% if name in parts or n > 3 %}" + body + "{% else %}" + body + "{% endif %}",
                    body,
                ]
            )
        )
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.lists(PIECES, max_size=14).map("".join), BLOCKS), st.lists(st.text(max_size=3), max_size=3))
def test_what_was_read_without_a_mistake_renders(source, parts):
    made, _, mistakes = template_of(source, VARIABLES)
    assert (made is None) is bool(mistakes)
    if made is not None:
        made.render({**VALUES, "parts": parts}, 10**6)


def test_loops_that_do_nothing_are_work_too():
    deep = "".join(f"{{% for x{n} in parts %}}" for n in range(6)) + "{% endfor %}" * 6
    assert template_of(deep, VARIABLES)[2][0].message.startswith("could take")
