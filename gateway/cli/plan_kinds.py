"""The kinds of engines that `tidegate plan` compares: from fleet files, profiles and launch configurations."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backends.launch.resolve import Launch
from gateway.cli.connection import StoreOptions
from gateway.cli.launch_options import launch_from
from gateway.cli.models import revision_of
from gateway.cli.printing import fail
from policies.yaml.located import read_yaml
from policies.yaml.validate import validated
from routing.profile import EngineProfile, read_profile
from routing.simulation.fleet_file import Engines, FleetFile, Objective
from routing.simulation.plan import PlannedKind

T = TypeVar("T")

LIMIT_FLAGS: Mapping[str, tuple[str, ...]] = {
    "max_num_seqs": ("max-num-seqs", "max-running-requests"),
    "token_budget": ("max-num-batched-tokens", "chunked-prefill-size"),
    "context_tokens": ("max-model-len", "context-length"),
}
"""The flags of vLLM and SGLang that say what an entry of a fleet file says."""


def kinds_of(
    fleets: Sequence[Path], profiles: Sequence[str], launches: Sequence[str], prices: Sequence[float], slo: Objective, gateway: StoreOptions
) -> list[PlannedKind]:
    """The kinds to compare, in the order in which they were named: the profiles, or without one the fleet files.

    Ends the command with code 2 for what cannot be planned. Raises ConfigError for a fleet file that is none.
    """
    if profiles and len(fleets) > 1:
        fail("a profile replaces the speed in one fleet file, and there are several: name one --fleet, or no --profile", 2)
    read = [_fleet(file, slo) for file in fleets]
    names = [*profiles] if profiles else [str(file) for file in fleets]
    launch_of, price_of = _for_each("--launch", launches, names), _for_each("--gpu-hour-usd", prices, names)
    kinds = []
    for place, (name, label) in enumerate(zip(names, _labels(names), strict=True)):
        fleet, profile, launch_name = read[0 if profiles else place], None, launch_of[place]
        if profiles:
            profile, kept_with = _profile(name, gateway)
            launch_name = launch_name or kept_with
        kinds.append(_kind(label, fleet, profile, launch_from(launch_name) if launch_name else None, price_of[place]))
    unpriced = [kind.name for kind in kinds if kind.usd_engine_hour is None]
    if unpriced and len(unpriced) < len(kinds):
        fail(f"{', '.join(unpriced)}: no price, and the others have one; say --gpu-hour-usd once for each, in their order", 2)
    return kinds


def _fleet(file: Path, slo: Objective) -> FleetFile:
    fleet: FleetFile = validated(FleetFile, read_yaml(file, None))
    if len(fleet.engines) > 1:
        kinds = f"{file}: engines has {len(fleet.engines)} kinds, and a plan has engines of one kind"
        fail(f"{kinds}: write each into a file of its own and name all of them (--fleet A --fleet B) to compare them", 2)
    if fleet.engines[0].role != "both":
        fail(f"{file}: engines[0].role is {fleet.engines[0].role}; a plan has engines that serve requests whole", 2)
    if fleet.faults:
        fail(f"{file}: faults belong to engines by number, and a plan tries many numbers: take them out; --standby adds engines instead", 2)
    return fleet.model_copy(update={"slo": slo})


def _kind(label: str, fleet: FleetFile, profile: EngineProfile | None, launch: Launch | None, usd_gpu_hour: float | None) -> PlannedKind:
    engine = fleet.engines[0]
    changed: dict[str, Any] = {}
    if profile is not None:
        if profile.kv_tokens is None and engine.kv_tokens is None:
            fail(f"{label}: the engine did not tell its KV capacity; write kv_tokens into the fleet file's entry", 2)
        changed |= {"machine": None, "rates": profile.rates, "kv_tokens": profile.kv_tokens or engine.kv_tokens}
    if launch is not None:
        changed |= {key: value for key, flags in LIMIT_FLAGS.items() if (value := _number(launch, flags)) is not None}
        changed["gpus"] = launch.config.hardware.gpus
    try:
        planned = Engines.model_validate({**engine.model_dump(), **changed})
    except ValueError as error:
        fail(f"{label}: {error}", 2)
    price = None if usd_gpu_hour is None else usd_gpu_hour * planned.gpus_each
    if price == 0:
        fail(f"{label}: has no GPU, so --gpu-hour-usd is no price of it; measure it with `tidegate engine profile --usd-per-hour`", 2)
    return PlannedKind(
        name=label,
        fleet=fleet.model_copy(update={"engines": [planned]}),
        timing=_timing(planned, profile),
        gpus=planned.gpus_each,
        usd_engine_hour=price if price is not None or profile is None else profile.usd_per_hour,
        launch="" if launch is None else launch.config.name,
        measured_tokens=None if profile is None else max((point.tokens for point in profile.prompts), default=None),
    )


def _timing(engine: Engines, profile: EngineProfile | None) -> str:
    if profile is not None:
        day = datetime.fromtimestamp(profile.measured_unix, UTC).date().isoformat()
        words = f"measured on {profile.served} ({profile.engine}), {day}; error on held-out prompts {profile.error_share:.1%}"
    elif engine.machine is not None:
        words = f"constants of the class {engine.machine}; this engine was not measured"
    else:
        words = "the rates in the fleet file"
    factors = {"slower": engine.slower, "prefill_slower": engine.prefill_slower}
    return words + "".join(f", {name} {factor:g}" for name, factor in factors.items() if factor != 1.0)


def _profile(name: str, gateway: StoreOptions) -> tuple[EngineProfile, str | None]:
    """The profile of a file or of a revision, and the launch configuration of the revision."""
    if "@" in name and not Path(name).exists():
        revision = revision_of(gateway.api(), name)
        if revision["profile"] is None:
            fail(f"{name} has no profile; `tidegate engine profile URL --save {name}` measures one", 2)
        return msgspec.convert(revision["profile"], EngineProfile), revision["launch"]
    try:
        return read_profile(Path(name).read_bytes()), None
    except OSError as error:
        ways = "`tidegate engine profile URL --out FILE` writes one, and MODEL@REVISION names one of the registry"
        fail(f"--profile {name}: cannot be read ({error.strerror}); {ways}", 2)
    except ValueError as error:
        fail(f"--profile {name}: {error}", 2)


def _number(launch: Launch, flags: Sequence[str]) -> int | None:
    """The first of these flags that the launch sets to a positive number."""
    texts = [str(launch.flags[flag]) for flag in flags if flag in launch.flags]
    return next((int(text) for text in texts if text.isdecimal() and int(text) > 0), None)


def _for_each(option: str, values: Sequence[T], names: Sequence[str]) -> list[T | None]:
    """One value for each kind: the only one for all, or each its own."""
    if len(values) <= 1:
        return [values[0] if values else None] * len(names)
    if len(values) != len(names):
        fail(f"{option} is there {len(values)} times for {len(names)} kinds of engines; say it once for all, or once for each", 2)
    return list(values)


def _labels(names: Sequence[str]) -> list[str]:
    """Short names for tables: files without folder and ending, unless two of them are alike."""
    short = [name if "@" in name else Path(name).stem for name in names]
    labels = [name if short.count(label) > 1 else label for name, label in zip(names, short, strict=True)]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        fail(f"{twice} is named twice; a kind of engine is planned once", 2)
    return labels
