"""Checks examples that are no commands: YAML against the model of its kind, JSON and Python by their parsers.

A fragment may leave out required fields; each field that it has must be right. The kind of a YAML fragment follows from its keys, or is
said with `as=`.
"""

import ast
import json
from typing import Any, Final

import yaml
from pydantic import BaseModel

from gateway.config.pools import BackendSettings, PoolSettings
from gateway.config.settings import Settings
from guardrails.policy import GuardPolicy
from policies.prompts.schema import PromptDocument
from policies.rollout.document import RolloutDocument
from policies.schema import PolicyDocument
from policies.yaml.located import parse_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import checked
from routing.simulation.fleet_file import FleetFile
from tests.docs.pages import Fence

KINDS: Final[dict[str, type[BaseModel]]] = {
    "settings": Settings,
    "policy": PolicyDocument,
    "rollout": RolloutDocument,
    "prompt": PromptDocument,
    "pool": PoolSettings,
    "guards": GuardPolicy,
    "backend": BackendSettings,
    "fleet": FleetFile,
}
"""Kinds of YAML fragments; further: `kubernetes`, and `other` for files of other programs, which are only parsed."""
ONLY_NAMED: Final = "guards"
"""The kind that has to be said with `as=`: its `rules` are a key of policies, too."""
FIELDS: Final = {
    kind: {f.alias or name: f.is_required() for name, f in model.model_fields.items()}
    for kind, model in KINDS.items()
    if kind != ONLY_NAMED
}
"""The keys of each other kind, and whether they are required."""


class WrongExample(Exception):
    """An example that is not right; the message names page, line and mistake."""


def check(fence: Fence) -> None:
    """Raises WrongExample."""
    try:
        if fence.language == "json":
            _json(fence.text)
        elif fence.language == "python":
            ast.parse(fence.text)
        elif fence.language == "yaml":
            _yaml(fence)
    except (ValueError, SyntaxError, yaml.YAMLError) as error:
        raise WrongExample(f"{fence.where}: {error}") from None


def kind_of(fence: Fence) -> str:
    """The kind of a YAML fragment. Raises WrongExample when its keys belong to no kind or to several."""
    if fence.kind:
        return fence.kind
    document = yaml.safe_load(fence.text)
    keys = set(document) if isinstance(document, dict) else {None}
    fitting = [kind for kind, fields in FIELDS.items() if keys <= fields.keys()]
    if len(fitting) > 1:
        # keys such as `name` belong to many kinds; the required ones tell them apart
        fitting = [kind for kind in fitting if {key for key, required in FIELDS[kind].items() if required} <= keys]
    if len(fitting) != 1:
        raise WrongExample(f"{fence.where}: what is it? Add as=KIND, one of {', '.join([*KINDS, 'kubernetes', 'other'])}")
    return fitting[0]


def _json(text: str) -> Any:
    return json.loads(text)


def _yaml(fence: Fence) -> None:
    documents = list(yaml.safe_load_all(fence.text))
    kind = kind_of(fence)
    if kind == "other":
        return
    if kind == "kubernetes":
        if bad := [document for document in documents if not {"apiVersion", "kind"} <= document.keys()]:
            raise WrongExample(f"{fence.where}: no apiVersion or kind in {bad[0]}")
        return
    if kind not in KINDS:
        raise WrongExample(f"{fence.where}: as={kind} is no kind; known: {', '.join([*KINDS, 'kubernetes', 'other'])}")
    try:
        located = parse_yaml(fence.text.encode(), fence.where, None)
    except ConfigError as error:
        raise WrongExample(f"{fence.where}: {error}") from None
    problems = checked(KINDS[kind], located)[1]
    if wrong := [problem for problem in problems if problem.message != "is missing"]:
        raise WrongExample(f"{fence.where}: as {kind}: " + "\n".join(map(str, wrong)))
