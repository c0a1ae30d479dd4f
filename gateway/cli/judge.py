"""`tidegate judge …`: how far a model agrees with labelled answers, before it judges."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.cache_warm import KEY_VARIABLE, key_from, target_of
from gateway.cli.connection import DEFAULT_CONFIG, Config, nobody_listens
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, fail, out, print_json
from gateway.config.trust import verify_for
from gateway.judge.agreement import AgreementFigures, CaseVerdict, LabelledCase, figures_of, labelled_cases, questions_on, verdict_of
from gateway.judge.questions import ModelQuestion

judge_app = CommandGroup("The judge: how far a model agrees with labelled answers.")

MARK: Final = "case-7f3a"
"""Between the texts of cases; they are our own, so nobody has to be kept from guessing it."""
ANSWER_S: Final = 600.0
_COLUMNS: Final = ("name", "label", "verdict", "agrees", "score")

AsksOne = Callable[[ModelQuestion], str]
"""Gets one question and returns the reply."""


@judge_app.callback()
def _root() -> None:
    """The judge: how far a model agrees with labelled answers."""


@judge_app.command("agreement")
def agreement(
    output: OutputOptions,
    model: Annotated[str, typer.Option(help="The model to try, by its name for the caller.")],
    url: Annotated[str | None, typer.Option(metavar="URL", help="The gateway's data port; default: data.bind of --config.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Holds the caller's key; default: {KEY_VARIABLE}.")] = None,
    config: Config = DEFAULT_CONFIG,
    cases: Annotated[Path | None, typer.Option(metavar="FILE", help="Labelled cases in JSON Lines; default: the 40 of Tidegate.")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=64, help="Questions at a time.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=16, max=32_768, help="Output tokens of one verdict.")] = 256,
    structured: Annotated[bool, typer.Option(help="Ask the engine to hold verdicts to a JSON schema.")] = True,
) -> None:
    """Ask a model for its verdicts on labelled cases, in both orders where two answers are compared, and print how far it agrees.

    Exit codes: 0 every question was answered, 1 one was not, 2 wrong usage.
    """
    labelled = _cases(cases)
    target, key = target_of(url, config), key_from(key_file)
    if nobody_listens(target.url):
        fail(f"no gateway answers at {target.url} ({target.source}); start one with `tidegate serve`, or name its data port with --url")
    verdicts = _asked(labelled, parallel, (target.url, key), lambda question: _body(question, model, max_tokens, structured))
    figures = figures_of(verdicts)
    rows = [
        {"name": verdict.case.name, "label": verdict.case.label, "verdict": verdict.word, "agrees": verdict.agrees, "score": verdict.score}
        for verdict in verdicts
    ]
    if output.as_json:
        print_json({"model": model, **msgspec.structs.asdict(figures), "verdicts": rows})
        return
    wrong = [row for row in rows if not row["agrees"]]
    if wrong:
        output.show(wrong, _COLUMNS)
    out.print(in_words(model, figures), markup=False, soft_wrap=True)


def _cases(file: Path | None) -> tuple[LabelledCase, ...]:
    try:
        found = labelled_cases(None if file is None else file.read_bytes())
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror or error}", code=2)
    except ValueError as error:
        fail(f"{file}: {error}", code=2)
    if not found:
        fail(f"{file} has no cases", code=2)
    return found


def _body(question: ModelQuestion, model: str, max_tokens: int, structured: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": model, "messages": question.messages, "max_tokens": max_tokens, "temperature": 0}
    return body | ({"response_format": question.form} if structured else {})


def _asked(
    labelled: tuple[LabelledCase, ...], parallel: int, gateway: tuple[str, str], body_of: Callable[[ModelQuestion], dict[str, object]]
) -> list[CaseVerdict]:
    """The verdicts; ends the command where a question is not answered. `gateway` is the address and the key."""
    # imported only here: the import takes longer than all of `--help`
    import httpx

    url, key = gateway
    headers = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=ANSWER_S, trust_env=False, verify=verify_for(url)) as client:

        def ask(question: ModelQuestion) -> str:
            reply = client.post("/v1/chat/completions", json=body_of(question))
            document: Any = msgspec.json.decode(reply.content)
            if reply.status_code != 200:
                raise ValueError(f"{reply.status_code}: {document['error']['message']}")
            return document["choices"][0]["message"]["content"] or ""

        try:
            with ThreadPoolExecutor(parallel) as threads:
                return list(threads.map(lambda case: verdict_on(case, ask), labelled))
        except (httpx.HTTPError, msgspec.DecodeError, ValueError, LookupError, TypeError) as error:
            fail(f"the model did not answer: {str(error)[:300] or type(error).__name__}")


def verdict_on(case: LabelledCase, ask: AsksOne) -> CaseVerdict:
    """What a model says of a case. Raises what `ask` raises."""
    return verdict_of(case, [ask(ModelQuestion(messages, 0, form=form)) for messages, form in questions_on(case, MARK)])


def in_words(model: str, figures: AgreementFigures) -> str:
    """The figures in sentences."""
    parts = [f"{model}: {figures.cases} cases, {figures.unreadable} with a verdict that cannot be read"]
    if figures.score_agreement is not None:
        kappa = "not defined" if figures.kappa is None else f"{figures.kappa:.2f}"
        wrong = f"{figures.passed_bad} bad ones passed, {figures.failed_good} good ones failed"
        parts.append(f"of {figures.scored} scored answers it agrees on {figures.score_agreement:.0%} (kappa {kappa}): {wrong}")
    if figures.pair_agreement is not None:
        parts.append(f"of {figures.compared} pairs it agrees on {figures.pair_agreement:.0%}; {figures.swayed} verdicts followed the order")
    return "\n".join(parts)
