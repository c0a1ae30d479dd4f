"""One text of a prompt: parsed, checked and rendered, safely and within bounds that are known before its first use.

Jinja2 parses the source, `language.Reader` allows a small subset of its language: no calls, attributes (but those of `loop`),
subscripts, arithmetic, assignments, macros, includes. A text of which one rendering could touch more than `MAX_WORK_CHARS` is refused
when it is read. An accepted text is still compiled in Jinja2's sandbox, with nothing but six filters, and its output is limited in length.

MiniJinja (3.0.5), which has fuel, was the alternative. It does not expose its tree, so neither could its language be restricted nor a
mistake be reported with its line; and fuel aborts a rendering while a request waits for it, whereas this rendering is known to end.
"""

from collections.abc import Mapping
from typing import Any, Final

import jinja2
import jinja2.sandbox
from jinja2 import nodes

from policies.prompts.language import FILTERS, Mistake, TemplateReader
from policies.prompts.variables import Variable

MAX_WORK_CHARS: Final = 2**22
"""Characters that one rendering of one text may touch at worst, every loop at its longest, and every step counted as `STEP_CHARS` more:
rendering keeps a worker from everything else."""

MAX_REASON_CHARS: Final = 200
"""Characters of Jinja2's message on a mistake, which repeats the source."""


class TooLong(Exception):
    """The rendered text has more characters than allowed."""


class Template:
    """A checked text, compiled for rendering.

    Args:
        tree: a tree that has passed the check.
    """

    __slots__ = ("_compiled",)

    def __init__(self, tree: nodes.Template) -> None:
        self._compiled = _ENVIRONMENT.from_string(tree)

    def render(self, values: Mapping[str, Any], room: int) -> str:
        """The rendered text.

        Args:
            values: checked values of all variables.
            room: characters that the text may have.

        Raises:
            TooLong: the text has more.
        """
        parts = []
        for part in self._compiled.generate(values):
            room -= len(part)
            if room < 0:
                raise TooLong
            parts.append(part)
        return "".join(parts)


def template_of(source: str, variables: Mapping[str, Variable]) -> tuple[Template | None, frozenset[str], list[Mistake]]:
    """The template, the variables that it names, and every mistake in it; the template is None as soon as there is a mistake."""
    try:
        tree = _ENVIRONMENT.parse(source)
    except jinja2.TemplateSyntaxError as error:
        message = ascii(error.message or "it is unreadable")[1:-1].rstrip(".").replace("\\'", "'")[:MAX_REASON_CHARS]
        return None, frozenset(), [Mistake(error.lineno, f"cannot be read: {message}")]
    except (RecursionError, ValueError, OverflowError):
        return None, frozenset(), [Mistake(1, "is nested too deep, or has a number that is too long")]
    reader = TemplateReader(variables)
    try:
        reader.read(tree)
    except RecursionError:
        reader.mistakes.append(Mistake(1, "is nested too deep"))
    if reader.work > MAX_WORK_CHARS and not reader.mistakes:
        message = f"could take {reader.work} characters' work in one rendering, where {MAX_WORK_CHARS} are allowed"
        reader.mistakes.append(Mistake(1, message, "lower max_length or max_items of its variables, or take loops apart"))
    return (None if reader.mistakes else Template(tree)), frozenset(reader.used), reader.mistakes


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, cache_size=0, autoescape=False
    )
    environment.globals.clear()
    environment.tests.clear()
    environment.filters.clear()
    environment.filters.update(FILTERS)
    return environment


_ENVIRONMENT: Final = _environment()
