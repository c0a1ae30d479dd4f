"""Rollout files as `tidegate rollout` reads them: checks and explains them without a gateway."""

import os
from collections.abc import Iterator
from pathlib import Path

import typer

from gateway.cli.durations import duration_in_words
from gateway.cli.printing import err
from gateway.config.load import load_settings
from gateway.config.pools import PoolSettings
from policies.prompts.folder import names_in
from policies.rollout.document import RolloutDocument
from policies.rollout.plan import RolloutStep, StepNeeds
from policies.yaml.located import Located, read_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated


def read_rollout(file: Path) -> tuple[RolloutDocument, Located]:
    """A rollout file, with the places of its values; ends the command at a mistake."""
    try:
        located = read_yaml(file, os.environ)
        return validated(RolloutDocument, located), located
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def check_targets(document: RolloutDocument, located: Located, config: Path) -> list[str]:
    """Check pools or prompts against the settings file; returns notes on what only the gateway knows. Ends the command at a mistake."""
    try:
        settings = load_settings(config)
        known = {pool.name for pool in settings.pools} if document.of == "pool" else names_in(settings.prompts_dir)
        problem = "is no pool of the settings" if document.of == "pool" else "is no version of a prompt there"
        listed = f"there are: {', '.join(sorted(known)[:20]) or 'none'}"
        named = {key: getattr(document, key) for key in ("baseline", "canary")}
        if unknown := [located.problem((key,), problem, listed) for key, name in named.items() if name not in known]:
            raise ConfigError(unknown)
        if document.of != "pool":
            return []
        by_name = {pool.name: pool for pool in settings.pools}
        return _adapter_notes(by_name[document.baseline], by_name[document.canary], located)
    except ConfigError as error:
        err.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def _adapter_notes(baseline: PoolSettings, canary: PoolSettings, located: Located) -> list[str]:
    """Notes where adapters registered over the admin API decide whether the rollout starts: the settings file does not have those.

    Raises:
        ConfigError: the canary lacks an adapter of the baseline, and takes no registrations.
    """
    missing = sorted({lora.name for lora in baseline.loras} - {lora.name for lora in canary.loras})
    if missing and canary.lora_folder is None:
        text = f"pool {canary.name!r} lacks adapter {missing[0]!r}, which pool {baseline.name!r} has"
        raise ConfigError([located.problem(("canary",), text, "add it to the pool's `loras` in the settings")])
    if missing:
        lacks = f"{missing[0]!r}{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, which pool {baseline.name!r} has"
        where = "adapters registered over the admin API are not known here, and start refuses it unless registered (tidegate lora list)"
        return [f"note: pool {canary.name!r} has no adapter {lacks}, in the settings; {where}"]
    if baseline.lora_folder is not None:
        where = "are not known here; start refuses it unless the canary has each of them too (tidegate lora list)"
        return [f"note: adapters registered over the admin API for pool {baseline.name!r} {where}"]
    return []


def meaning(document: RolloutDocument) -> Iterator[str]:
    """What a rollout will do, in lines."""
    plan = document.plan("check")
    kind = "experiment" if not plan.acts else "rollout"
    yield f"ok, {kind} {document.name}: {document.baseline} -> {document.canary}"
    for only, names in (("tenants", document.tenants), ("models", document.models)):
        if names is not None:
            yield f"  only {only} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    asked_for = 0
    for name, step in plan.named()[:-1]:
        asked_for += step.min_requests
        short = step.needs is StepNeeds.NOT_WORSE and asked_for < plan.terms.min_samples
        yield f"  {_step_in_words(name, step)}{_waiting(asked_for, plan.terms.min_samples) if short else ''}"
    yield f"  then {'nothing by itself' if not plan.acts else 'all of the traffic'}; no decision in time: {document.on_timeout}"
    margins = ", ".join(f"{metric} {margin:g}" for metric, margin in plan.terms.margins.items())
    yield f"  margins {margins}; alpha {plan.terms.alpha:g}"


def _waiting(asked_for: int, min_samples: int) -> str:
    """The note on a step whose requests are too few for any judgement."""
    requests = f"{asked_for:,} request{'s' * (asked_for != 1)}"
    return f"; note: {requests} are fewer than min_samples ({min_samples:,}), so it also waits until one metric has {min_samples:,} samples"


def _step_in_words(name: str, step: RolloutStep) -> str:
    least, most = duration_in_words(step.min_s), duration_in_words(step.max_s)
    text = f"{name}: {step.min_requests:,} requests and {least}, at most {most}; {step.needs.value}"
    return text + ("; waits to be promoted" if step.gate else "")
