"""`tidegate engine profile`: measures engines, compares them, and keeps what was measured with a revision or in a file.

An engine is profiled at its URL, or started from a launch configuration and ended afterwards; then its cold start is measured too.
`engine_meter` measures, `routing.profile` fits the rates.
"""

import contextlib
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
import typer

from backends.dialects import DIALECTS
from backends.fetch import FetchError
from backends.launch.catalogue import names
from backends.launch.engine_facts import MODELS, PATHS, EngineFacts, read_facts
from backends.signals import Signals
from domain.model_revisions import Pinned
from gateway.cli.backends import fleet_of
from gateway.cli.connection import URL_VARIABLE, StoreOptions, nobody_listens
from gateway.cli.engine_access import EngineAccess, EngineAccessOptions, kind_of, lists, unanswered
from gateway.cli.engine_check import ask, checked_url
from gateway.cli.engine_meter import EngineMeter, MeterFault, MeterPlan, measured, plan_for, tokens_of_others
from gateway.cli.engine_run import LOOK_S, EngineProcess, need_digest, need_free_port
from gateway.cli.launch_options import Sets, launch_from
from gateway.cli.models import REVISIONS, revision_of
from gateway.cli.printing import check_plot, check_target, err, fail, out, print_table
from routing.profile import STEP_TOKENS, EngineProfile, error_share, fitted_rates, profile_text, step_s, ttft_s

SHORT_PROMPT: Final = 512
"""Tokens of the prompt by whose time engines are compared, beside the longest one."""


class Target(msgspec.Struct, frozen=True):
    """One engine to profile, running."""

    name: str
    """As the user wrote it."""
    url: str
    dialect: str
    model: str
    access: EngineAccess
    facts: EngineFacts
    signals: Signals | None
    cold_start_s: float | None = None

    @property
    def kv_tokens(self) -> int | None:
        """The capacity of its KV cache, where it tells it."""
        if self.signals is not None and self.signals.kv_capacity_tokens:
            return self.signals.kv_capacity_tokens
        facts = self.facts
        return None if facts.blocks is None or facts.block_size is None else facts.blocks * facts.block_size


class Asking(msgspec.Struct, frozen=True):
    """How one engine is asked."""

    dialect: str
    model: str | None
    """The name that it must serve; None for any."""
    likely: tuple[str, ...]
    """The names to ask for where it serves one of them, the likeliest first."""
    access: EngineAccess
    revision: dict[str, Any] | None
    """The revision that a launch configuration is started on, as the registry shows it; None for what the configuration says."""


class MeterSettings(msgspec.Struct, frozen=True):
    """How to measure."""

    plan: MeterPlan
    step_tokens: int
    seconds: float
    force: bool
    """Whether to measure on while others ask the engine."""


def profile_engine(
    engine: Annotated[str, typer.Argument(help="Where it listens, without /v1; or a launch configuration, which is started for it.")],
    gateway: StoreOptions,
    way: EngineAccessOptions,
    compare: Annotated[str | None, typer.Option(metavar="ENGINE", help="A second URL or launch configuration, measured next.")] = None,
    dialect: Annotated[
        list[str] | None,
        typer.Option(help=f"The kind of engine behind a URL: {', '.join(DIALECTS)}; again for the second. Default: the pool's, else vllm."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="The served name to ask for; again for the second. Default: the pool's, else the first that it lists."),
    ] = None,
    sets: Sets = None,
    longest: Annotated[int, typer.Option(min=64, max=1_000_000, help="Longest prompt, tokens; less where the context is shorter.")] = 4096,
    sequences: Annotated[int, typer.Option(min=1, max=128, help="Most sequences of a batch.")] = 16,
    step_tokens: Annotated[
        int | None, typer.Option(min=16, help=f"Most prompt tokens of one of its steps; default: the pool's, else {STEP_TOKENS}.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.05, max=120, help="Time for each engine; what is left then is skipped.")] = 5.0,
    usd_per_hour: Annotated[
        list[float] | None, typer.Option(min=0.0001, help="Price of an hour of it; again for the second where that costs another.")
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="MODEL@REVISION", help="Keep the profile with this revision; a launch configuration is started on it."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", callback=check_target, help="Write the profile to this file, for `profile` of a pool.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=check_plot, help="Draw measured and predicted times, PNG or SVG; needs the extra report.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure although the engine has requests.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profiles as JSON.")] = False,
) -> None:
    """Measure an idle engine: seconds to the first token by prompt length, decode steps by batch and context, KV capacity.

    Exit codes: 0 measured, 1 it cannot be measured, has requests, or does not prove the revision, 2 wrong usage.
    """
    named = way.named(gateway.config)
    targets = [engine] if compare is None else [engine, compare]
    # the second engine may be anybody's: a key or certificate of the pool goes there only where the pool lists it
    known = [named, named if compare is not None and lists(named, compare) else None]
    access = [way.access(one, targets) for one in known[: len(targets)]]
    revision = None if save is None else revision_of(gateway.api(), save)
    asking = [
        Asking(
            kind_of(dialect[min(place, len(dialect) - 1)] if dialect else None, named),
            model[place] if model is not None and place < len(model) else None,
            (*(model or ()), *(() if named is None else (named.pool.model,))),
            access[place],
            revision if place == 0 else None,
        )
        for place in range(len(targets))
    ]
    size = step_tokens or (STEP_TOKENS if named is None else named.pool.step_tokens)
    prices = [usd_per_hour[min(place, len(usd_per_hour) - 1)] if usd_per_hour else None for place in range(len(targets))]
    if compare is not None and _is_url(compare):
        with _running(compare, asking[1], sets) as second:  # before minutes go by with the first one
            if not force:
                _need_idle(second, gateway)
    profiles = []
    for place, (name, price) in enumerate(zip(targets, prices, strict=True)):
        with _running(name, asking[place], sets) as target:
            if not force:
                _need_idle(target, gateway)
            if place == 0 and revision is not None:
                _need_proof(target, revision)
            profiles.append(_profiled(target, MeterSettings(_plan(target, longest, sequences), size, minutes * 60, force), price))
        # at once: the measurement of the second engine may fail
        if place == 0 and file is not None:
            _write(file, profile_text(profiles[0]).encode())
        if place == 0 and save is not None:
            gateway.api().post(f"{REVISIONS}/{quote(save)}/profile", msgspec.to_builtins(profiles[0]))
    if plot is not None:
        _draw(plot, profiles, size)
    if as_json:
        typer.echo(msgspec.json.encode({"profiles": profiles}).decode())
        return
    for one in profiles:
        _print(one, size)
    if compare is not None:
        _print_comparison(targets, profiles, size)
    if save is not None:
        out.print(f"kept with {save}", markup=False)


def _is_url(name: str) -> bool:
    """Whether an engine is named by its address, and not by a launch configuration."""
    return name not in names() and not name.endswith((".yaml", ".yml"))


@contextlib.contextmanager
def _running(name: str, asking: Asking, sets: list[str] | None) -> Iterator[Target]:
    """The engine at a URL, or one of a launch configuration that runs as long as it is measured."""
    if _is_url(name):
        try:
            checked_url(name)
        except ValueError as error:
            fail(f"{error}, or a launch configuration of `tidegate engine list`", code=2)
        yield _target(name, name, asking)
        return
    launch = launch_from(name, sets, revision=asking.revision)
    need_digest(launch)
    need_free_port(launch)
    begun = time.monotonic()
    try:
        process = EngineProcess(launch)
    except OSError as error:
        fail(f"{launch.command[0]} cannot be started ({error.strerror}); install the engine", code=127)
    try:
        while not process.is_healthy():
            if process.code is not None:
                fail(f"{name}: the engine ended by itself with code {process.code}; its own log says why")
            if time.monotonic() - begun > launch.config.ready_s:
                fail(f"{name}: not healthy after {launch.config.ready_s} s; its own log says why")
            time.sleep(LOOK_S)
        cold_s = time.monotonic() - begun
        yield msgspec.structs.replace(
            _target(name, launch.url, msgspec.structs.replace(asking, dialect=launch.engine)), cold_start_s=cold_s
        )
    finally:
        process.terminate()
        deadline = time.monotonic() + launch.stop_s
        while process.code is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        process.kill()


def _target(name: str, url: str, asking: Asking) -> Target:
    load = DIALECTS[asking.dialect].signals_path
    replies: dict[str, bytes] = {}
    for path in dict.fromkeys((MODELS, *((load,) if load else ()), *PATHS.get(asking.dialect, ()))):
        try:
            reply = ask(url, path, asking.access)
        except FetchError as error:
            fail(f"{url} {unanswered(url, path, asking.access, error)}")
        if reply.status == 200:
            replies[path] = reply.body
    facts = read_facts(asking.dialect, replies)
    served = facts.served_names
    if not served:
        fail(f"{url}: {MODELS} lists no model; is that an engine, and does it ask for a key (--api-key-env)?")
    if asking.model is not None and asking.model not in served:
        fail(f"{url}: serves {', '.join(served)[:300]}, not {asking.model}; look at --model")
    model = asking.model or next((name for name in asking.likely if name in served), served[0])
    signals = None if load is None else _signals(asking.dialect, replies.get(load))
    return Target(name, url, asking.dialect, model, asking.access, facts, signals)


def _signals(dialect: str, page: bytes | None) -> Signals | None:
    """What an engine's page of load says; None where there is none that can be read."""
    read = DIALECTS[dialect].read_signals
    if read is None or page is None:
        return None
    try:
        return read(page, time.monotonic())
    except ValueError:
        return None


def _need_idle(target: Target, gateway: StoreOptions) -> None:
    """End the command where the engine has requests, by its own count or by that of the gateway at hand."""
    signals = target.signals
    if signals is None or (signals.running is None and signals.waiting is None):
        err.print(f"note: {target.url} does not tell whether it has requests; nothing else may ask it meanwhile", soft_wrap=True)
    elif signals.running or signals.waiting:
        counted = f"{signals.running or 0} running and {signals.waiting or 0} waiting"
        fail(f"{target.url} has {counted} requests: measuring would disturb them and they the measurement; drain it, or say --force")
    place = gateway.place()
    named = place.settings is not None or gateway.admin is not None or os.environ.get(URL_VARIABLE)
    if not named or not place.url or nobody_listens(place.url):
        return
    mine = [state for state in fleet_of(gateway.public()) if state.url.rstrip("/") == target.url.rstrip("/")]
    if in_flight := sum(state.in_flight for state in mine):
        where = f"the gateway at {place.url} has {in_flight} requests in flight on {target.url}"
        fail(f"{where}: drain it (tidegate backend drain {mine[0].backend}), or say --force")


def _counted(target: Target) -> Signals | None:
    """What the engine counts now; None where it does not tell."""
    path = DIALECTS[target.dialect].signals_path
    if path is None or target.signals is None:
        return None
    try:
        reply = ask(target.url, path, target.access)
    except FetchError:
        return None  # what is measured next says why, if it is gone
    return _signals(target.dialect, reply.body if reply.status == 200 else None)


def _need_nobody_else(target: Target, meter: EngineMeter, before: Signals | None) -> None:
    """End the command where the engine computed tokens for others since the measurement began. Raises MeterFault."""
    after = None if before is None else _counted(target)
    if before is None or after is None:
        return
    if others := tokens_of_others(meter.answered, before, after):
        asked = f"others asked it meanwhile: it computed {others:,} tokens more than the measurement asked for"
        raise MeterFault(f"{asked}; drain it, or say --force")


def _need_proof(target: Target, revision: dict[str, Any]) -> None:
    if doubt := Pinned(revision["reference"], revision["digest"]).unproven(target.facts.served_names or ()):
        fail(f"{target.url} {doubt}: a profile is kept only with the revision that was measured; write it to a file with --out instead")


def _plan(target: Target, longest: int, sequences: int) -> MeterPlan:
    context = target.facts.context
    fitting = longest if context is None else min(longest, context * 3 // 4)
    return plan_for(fitting, min(sequences, target.facts.sequences or sequences), context, target.kv_tokens)


def _profiled(target: Target, settings: MeterSettings, usd_per_hour: float | None) -> EngineProfile:
    # imported only here: needed once the measuring begins
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    meter = EngineMeter(target.url, target.model, target.access, random.Random(), time.monotonic)
    end = time.monotonic() + settings.seconds
    seen = _counted(target)  # read anew: minutes may have passed
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(f"{target.name}: first request", total=settings.plan.points)

        def advance(said: str) -> None:
            if not settings.force:
                _need_nobody_else(target, meter, seen)
            progress.update(task, advance=1, description=f"{target.name}: {said}")

        try:
            prompts, steps = measured(meter, settings.plan, lambda: time.monotonic() > end, advance)
            rates = fitted_rates(prompts, steps, settings.step_tokens)
        except (MeterFault, ValueError) as error:
            fail(f"{target.url} cannot be measured: {error}")
    return EngineProfile(
        engine=target.dialect,
        served=target.model,
        measured_unix=time.time(),
        rates=rates._asdict(),
        kv_tokens=target.kv_tokens,
        cold_start_s=target.cold_start_s,
        usd_per_hour=usd_per_hour,
        prompts=prompts,
        steps=steps,
        error_share=error_share(rates, prompts, settings.step_tokens),
    )


def _print(profile: EngineProfile, step_tokens: int) -> None:
    rates = profile.prior
    out.print(f"{profile.served} ({profile.engine})", markup=False)
    rows = [{"rate": name, "seconds": f"{rate:.3g}"} for name, rate in profile.rates.items()]
    rows.append({"rate": "KV capacity", "seconds": f"{profile.kv_tokens:,} tokens" if profile.kv_tokens else "not told"})
    if profile.cold_start_s is not None:
        rows.append({"rate": "cold start", "seconds": f"{profile.cold_start_s:.1f}"})
    print_table(rows, ("rate", "seconds"))
    held = [one for one in profile.prompts if one.held_out]
    for one in held:
        said = f"predicted {ttft_s(rates, one.tokens, step_tokens):.3f} s, measured {one.seconds:.3f} s"
        out.print(f"first token of a held-out prompt of {one.tokens:,} tokens: {said}", markup=False)
    if held:
        out.print(f"mean error on held-out prompts: {profile.error_share:.1%}", markup=False)


def _print_comparison(targets: Sequence[str], profiles: Sequence[EngineProfile], step_tokens: int) -> None:
    """Both engines side by side."""
    columns = [f"{letter}: {target}" for letter, target in zip("AB", targets, strict=True)]
    rows: dict[str, list[str]] = {}
    longest = min(max(one.tokens for one in profile.prompts) for profile in profiles)
    size = min(max((one.sequences for one in profile.steps), default=1) for profile in profiles)
    for profile in profiles:
        rates = profile.prior
        step = step_s(rates, size, size * SHORT_PROMPT)
        tokens_s = size / step
        shown = {
            f"first token, {SHORT_PROMPT} tokens": f"{ttft_s(rates, SHORT_PROMPT, step_tokens):.3f} s",
            f"first token, {longest:,} tokens": f"{ttft_s(rates, longest, step_tokens):.3f} s",
            "step of one sequence": f"{step_s(rates, 1, SHORT_PROMPT) * 1e3:.1f} ms",
            f"step of {size} sequences": f"{step * 1e3:.1f} ms",
            f"tokens a second, {size} sequences": f"{tokens_s:,.0f}",
            "KV capacity": f"{profile.kv_tokens:,} tokens" if profile.kv_tokens else "-",
            "cold start": "-" if profile.cold_start_s is None else f"{profile.cold_start_s:.1f} s",
            f"dollars per million tokens, {size} sequences": "-"
            if profile.usd_per_hour is None
            else f"{profile.usd_per_hour / (tokens_s * 3600) * 1e6:.3g}",
        }
        for what, value in shown.items():
            rows.setdefault(what, []).append(value)
    print_table(
        [{"": what, **dict(zip(columns, values, strict=True))} for what, values in rows.items()],
        ("", *columns),
    )


def _draw(file: Path, profiles: Sequence[EngineProfile], step_tokens: int) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        fail("--plot needs matplotlib: pip install 'tidegate[report]'", code=2)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    first, step = figure.subplots(1, 2)
    for profile in profiles:
        rates, label = profile.prior, f"{profile.served} ({profile.engine})"
        lengths = sorted(one.tokens for one in profile.prompts)
        (line,) = first.plot(lengths, [ttft_s(rates, length, step_tokens) for length in lengths], label=f"{label}, predicted")
        for held, mark in ((False, "o"), (True, "x")):
            points = [one for one in profile.prompts if one.held_out is held]
            told = f"{label}, {'held out' if held else 'measured'}"
            first.plot([one.tokens for one in points], [one.seconds for one in points], mark, color=line.get_color(), label=told)
        predicted = [step_s(rates, one.sequences, one.context_tokens) * 1e3 for one in profile.steps]
        step.plot([one.seconds * 1e3 for one in profile.steps], predicted, "o", color=line.get_color(), label=label)
    step.axline((0, 0), slope=1, color="grey", linewidth=0.8)
    first.set(xlabel="tokens of the prompt", ylabel="seconds to the first token")
    step.set(xlabel="measured decode step, ms", ylabel="predicted decode step, ms")
    for axes in (first, step):
        axes.legend(fontsize=8)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        fail(f"--plot {file}: cannot be written ({error})")


def _write(file: Path, body: bytes) -> None:
    try:
        file.write_bytes(body)
    except OSError as error:
        fail(f"--out {file}: cannot be written ({error.strerror})")
