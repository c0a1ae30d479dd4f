from policies.yaml.problems import MAX_SHOWN, MAX_TEXT_CHARS, ConfigError, Problem, dotted


def test_a_problem_reads_as_place_path_message_and_hint():
    problem = Problem("tidegate.yaml", 12, 7, "pools[0].backends[1].url", "is no address", "write http://host:port")
    assert str(problem) == "tidegate.yaml:12:7: pools[0].backends[1].url: is no address; write http://host:port"


def test_a_problem_of_the_whole_file_has_no_path():
    assert str(Problem("a.yaml", 1, 1, "", "is not UTF-8")) == "a.yaml:1:1: is not UTF-8"


def test_a_problem_is_one_line_of_bounded_length_whatever_it_repeats():
    said = str(Problem("a.yaml", 1, 1, "rules[0].if", "Syntax error at '\u2028\x1b[2J'", "there are: " + "x" * 5_000))
    assert said.startswith("a.yaml:1:1: rules[0].if: Syntax error at '\\u2028\\x1b[2J'; there are: xxx")
    assert said.isprintable() and len(said) < 2 * MAX_TEXT_CHARS


def test_an_error_lists_each_problem_once_in_the_order_of_lines():
    late, early = Problem("a.yaml", 10, 1, "b", "y"), Problem("a.yaml", 9, 1, "a", "x")
    error = ConfigError([late, early, late])
    assert error.problems == (early, late)
    assert str(error) == "a.yaml:9:1: a: x\na.yaml:10:1: b: y"


def test_a_long_list_is_cut():
    error = ConfigError([Problem("a.yaml", line, 1, "", "x") for line in range(1, MAX_SHOWN + 6)])
    assert str(error).splitlines()[MAX_SHOWN:] == ["… and 5 more"]
    assert len(error.problems) == MAX_SHOWN + 5


def test_paths_are_dotted_and_odd_keys_quoted_on_one_line():
    assert dotted(("pools", 0, "model")) == "pools[0].model"
    assert dotted(("a", "b c\n")) == "a['b c\\n']"
    assert dotted(()) == ""
