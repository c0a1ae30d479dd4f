import jinja2
import pytest
from pydantic import TypeAdapter

from policies.prompts.language import STEP_CHARS, TemplateReader
from policies.prompts.variables import VariableField

S = STEP_CHARS
READ = TypeAdapter(VariableField)


def work(source, **declared):
    variables = {name: READ.validate_python(one) for name, one in declared.items()}
    environment = jinja2.Environment()
    environment.filters |= {"tojson": str}
    reader = TemplateReader(variables)
    reader.read(environment.parse(source))
    assert reader.mistakes == []
    return reader.work


@pytest.mark.parametrize(
    ("source", "chars"),
    [
        ("abc", S + 3),
        ("{{ t }}", S + 10),
        ("{{ t | trim }}", (S + 10) + (S + 10)),
        ("{{ t | upper }}", (S + 10) + (S + 30)),
        ("{% for x in l %}{{ x }}{% endfor %}", 4 * S + 4 * (S + 5)),
        ("{% for x in l %}{% for y in l %}{% endfor %}{% endfor %}", 4 * S + 16 * S),
        ("{{ l | join(', ') }}", (S + 20) + (S + 20 + 4 * 2)),
        ("{% if t == e %}ab{% else %}c{% endif %}", (S + 10 + 3) + (S + 5) + (S + 2) + (S + 1)),
    ],
)
def test_the_work_of_a_text_is_that_of_its_longest_rendering(source, chars):
    declared = {
        "t": {"type": "string", "max_length": 10},
        "l": {"type": "list", "max_items": 4, "max_length": 5},
        "e": {"type": "enum", "values": ["a", "abc"]},
    }
    assert work(source, **declared) == chars
