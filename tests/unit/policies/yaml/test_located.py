import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.yaml import located
from policies.yaml.located import MAX_DEPTH, MAX_FILE_BYTES, MAX_VALUES, ConfigError, parse_yaml, read_yaml


def parse(text, environ=None):
    return parse_yaml(text.encode(), "a.yaml", environ)


def refused(text, environ=None):
    with pytest.raises(ConfigError) as caught:
        parse(text, environ)
    return str(caught.value)


def test_plain_data_and_the_place_of_every_value():
    located = parse("a: 1\nb:\n  - x\n  - {c: 2.5}\n")
    assert located.data == {"a": 1, "b": ["x", {"c": 2.5}]}
    assert located.positions == {(): (1, 1), ("a",): (1, 1), ("b",): (2, 1), ("b", 0): (3, 5), ("b", 1): (4, 5), ("b", 1, "c"): (4, 6)}
    assert located.problems == ()


def test_an_empty_file_is_an_empty_mapping():
    assert parse("").data == parse("# nothing\n").data == {}


def test_a_problem_points_at_the_nearest_place_that_was_written():
    located = parse("a:\n  b: 1\n")
    assert str(located.problem(("a", "c", "d"), "is missing")) == "a.yaml:1:1: a.c.d: is missing"


def test_values_of_paths_that_are_not_there_are_none():
    located = parse("a: [1]\n")
    assert located.value("a", 0) == 1
    assert located.value("a", 1) is located.value("a", "x") is located.value("b", 0, "c") is None


def test_mistakes_that_hide_nothing_are_collected():
    located = parse("a: 1\na: 2\n3: x\nb: !!binary aGk=\nc: ${X}\nd: 1e999\ne: 4\n", {})
    assert located.data["a"] == 1
    assert located.data["e"] == 4
    assert [(p.line, p.path) for p in located.problems] == [(2, "a"), (3, ""), (4, "b"), (5, "c"), (6, "d")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "a.yaml:1:1: must be a mapping"),
        ("a: 1\n---\nb: 2\n", "a.yaml:2:1: holds a second document"),
        ("a: 1\nb: [\n", "a.yaml:3:1: is not valid YAML"),
        ("a: 1\nb: \x01\n", "a.yaml:2:1: is not valid YAML"),
        ("a: 1\n? {b: c}\n: d\n", "a.yaml:2:3: a key must be plain text"),
        ("a: " + "[" * 40 + "]" * 40, "is nested more than 32 deep"),
        ("a:\n" + "- x\n" * (MAX_VALUES + 1), f"has more than {MAX_VALUES} values"),
        ("a: " + "x" * MAX_FILE_BYTES, "has more than 1048576 bytes"),
        ("a: 1\na: 2\nb: [\n", "a.yaml:2:1: a: is written twice"),
    ],
)
def test_files_that_cannot_be_used(text, words):
    assert words in refused(text)


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_depth_costs_no_recursion(depth):
    assert f"is nested more than {MAX_DEPTH} deep" in refused("a: " + "[" * depth)


def test_bytes_that_are_no_utf8_are_refused_with_their_line():
    with pytest.raises(ConfigError, match=r"a\.yaml:2:1: is not UTF-8; save it as UTF-8"):
        parse_yaml(b"a: 1\nb: \xff\n", "a.yaml", None)


def test_a_byte_order_mark_is_allowed():
    assert parse_yaml(b"\xef\xbb\xbfa: 1\n", "a.yaml", None).data == {"a": 1}


def test_aliases_are_copies_whose_parts_point_to_where_they_were_written():
    located = parse("a: &x {b: [1, '${V}']}\nc: *x\nd: [*x]\n", {"V": "2"})
    assert located.data == {"a": {"b": [1, "2"]}, "c": {"b": [1, "2"]}, "d": [{"b": [1, "2"]}]}
    assert located.positions["c", "b", 1] == located.positions["a", "b", 1] == (1, 15)
    assert located.written["d", 0, "b", 1] == "${V}"
    located.data["a"]["b"].append(3)
    assert located.data["c"]["b"] == [1, "2"]


@pytest.mark.parametrize("text", ["a: *x\n", "a: &x [*x]\n", "a: &x {b: *x}\n"])
def test_aliases_to_nothing_or_to_themselves(text):
    assert "refers to nothing that ends above it" in str(parse(text).problems[0])


def test_an_alias_bomb_ends_at_the_bound():
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert f"has more than {MAX_VALUES} values" in refused("\n".join(lines))


def test_quoted_text_stays_text_and_plain_variables_are_read_as_written():
    located = parse("a: '1'\nb: \"${N}\"\nc: ${N}\nd: !!str 5\n", {"N": "4"})
    assert located.data == {"a": "1", "b": "4", "c": 4, "d": "5"}


def test_merge_keys_are_refused():
    assert "merge keys are not read here" in str(parse("a: &x {b: 1}\nc:\n  <<: *x\n").problems[0])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml", None)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path, None)


def test_pyyamls_own_parser_reads_the_same(monkeypatch):
    text = "a: &x [1, {b: 'c'}]\nd: *x\nd: 2\n"
    fast = parse(text)
    monkeypatch.setattr(located, "_LOADER", yaml.SafeLoader)
    assert parse(text) == fast


PIECES = ["&a ", "*a", "a: ", "- ", "\n  ", "---\n", "${A}", *"ab1:-?&*!|>'\"[]{},#%@`~ \n\t${}<\\"]
yamlish = st.lists(st.sampled_from(PIECES)).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), yamlish.map(str.encode)))
def test_nothing_but_config_errors_and_every_value_has_a_place(raw):
    try:
        located = parse_yaml(raw, "a.yaml", {"A": "x"})
    except ConfigError:
        return
    pending = [((), located.data)]
    while pending:
        path, value = pending.pop()
        assert path in located.positions
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        pending += [((*path, step), part) for step, part in inner]
