"""How many backends a pool needs for the load that it has now. Pure.

A pool's load says how much waits and how full its engines are, before callers notice; processor time and requests per second do not. Of
five needs the largest counts, each in backends:

    requests = (running + waiting + queued) / slots             slots: requests that one engine is taken to bear
    prompts  = up * share of the time that computes prompts / prefill
    memory   = KV in use * (running + waiting + queued) / running / kv
    time     = up * min(predicted / ttft_s, 2)                  where the predicted time to the first token is above `ttft_s`
    promises = up + 1                                           where more than `DEFICIT` of the requests missed their promise

with predicted = max(p95 that was measured, tokens that wait / prefill rate of all engines + error of predictions). The first three say
how large the load is, whatever the number of backends is now, so `headroom` is added to them and they alone scale in; the last two say
that the backends do not suffice. A pool that nothing is known of keeps its number.

Where one engine computes prompts and another generates, each role has a load and a need of its own. Engines that generate compute no
prompts, so they have neither that need nor the one by time; a time that was measured does not tell which of two engines it was spent in,
so for engines that compute prompts the time is the predicted one alone. Missed promises add a backend to the role that lacks most
(`missed_by`).

Where the pool has a section `predict`, the growth that past days show (`routing/forecast.py`) is a sixth need:

    forecast = min((largest of the first three + growth) / (1 - headroom), `most` * `max`)

It is at least what the first three need, up to its bound, and no need is less for it: a wrong forecast keeps engines that nobody needs,
and takes none away.

`PoolLoad` is what is known, `needed` the need, and `ScaleHistory` makes the number that is wanted of it: within `min` and `max`, and less
than there are now only once nothing more was needed for `scale_in_after_s`.
"""

from collections import deque
from collections.abc import Mapping
from math import ceil, floor
from typing import Final, Self

import msgspec
from pydantic import Field, model_validator

from domain.membership import Role
from domain.strict import Strict
from routing.fair_queue import QueueBounds
from routing.forecast import NO_GROWTH, Growth, PredictSettings

DEFICIT: Final = 0.05
"""Share of missed promises that is no reason to scale: promises are mostly made for 95 of 100 requests."""
MOST_GROWTH: Final = 2.0
"""A long wait at most doubles a pool at once: how long it is says that engines lack, not how many."""
PREFILL: Final[dict[Role, float]] = {"both": 0.3, "prefill": 0.7, "decode": 1.0}
"""Share of its time that an engine may compute prompts for, where the settings say none. What generates as well is held up by each prompt;
an engine that computes prompts alone makes the mean prompt wait 1.2 times its own time at this share (M/D/1: share / (2 (1 - share)))."""
USUAL_TOKENS: Final = 500
"""Uncached tokens that are assumed of a waiting request where no engine says how many wait."""
LEAST_GROWTH: Final = 0.5
"""Backends by which a pool without any has to grow to be started for a forecast: the odd request of a night is not worth an engine."""


class ToZeroSettings(Strict):
    """A pool that has no backend while nobody asks for it: what is held until one has started."""

    max_requests: int = Field(
        default=512, ge=1, le=100_000, description="Most requests that are held, by all workers of a gateway together."
    )
    max_requests_per_tenant: int = Field(default=64, ge=1, le=100_000, description="Most requests of one tenant that are held.")
    max_bytes: int = Field(default=128 * 1024 * 1024, ge=1024, le=2**40, description="Bytes of the bodies of all held requests together.")
    max_bytes_per_tenant: int = Field(
        default=32 * 1024 * 1024, ge=1024, le=2**40, description="Bytes of the bodies of one tenant's held requests."
    )
    wait_s: float = Field(
        default=300.0,
        gt=0,
        le=3600,
        description="Longest time that a request is held. A policy's `max_wait_s` and the caller's `x-tidegate-timeout-s` may shorten it.",
    )
    cold_start_s: float = Field(
        default=120.0,
        gt=0,
        le=3600,
        description="Time that an engine needs to start, until the gateway has seen some: what cannot be held is to come back after it.",
    )

    @property
    def bounds(self) -> QueueBounds:
        """What may be held."""
        return QueueBounds(self.max_requests, self.max_bytes, self.max_requests_per_tenant, self.max_bytes_per_tenant)


class RoleScaleSettings(Strict):
    """How many backends of one role a pool should have; see docs/reference/scaling.md."""

    min: int = Field(default=1, ge=1, le=100_000, description="Fewest backends that are recommended.")
    max: int = Field(default=100, ge=1, le=100_000, description="Most backends that are recommended.")
    headroom: float = Field(
        default=0.2, ge=0, le=0.9, description="Share of the backends that the load of now leaves free, for what comes while others start."
    )
    kv: float = Field(default=0.8, gt=0, le=1, description="Share of an engine's KV cache that running requests may use.")
    prefill: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of an engine's time that computing prompts may take. Null: 0.3, and 0.7 of engines that do nothing else.",
    )
    ttft_s: float = Field(default=2.0, gt=0, le=600, description="Predicted time to the first token above which a backend is added.")
    scale_in_after_s: float = Field(
        default=300.0, ge=0, le=86_400, description="Time during which fewer backends must have sufficed before fewer are recommended."
    )

    predict: PredictSettings | None = Field(
        default=None,
        description="Ask for backends ahead of the growth that past days show; `{}` for the defaults. Needs `console.prometheus_url`.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is {self.min:,} and max {self.max:,}; the first is the smaller one")
        return self

    @property
    def bounds(self) -> "ScaleSettings":
        """The same as the bounds of a pool that never has none."""
        return ScaleSettings.model_validate(self.model_dump())


class ScaleSettings(RoleScaleSettings):
    """How many backends a pool should have; see docs/reference/scaling.md."""

    min: int = Field(default=1, ge=0, le=100_000, description="Fewest backends that are recommended; 0 with `to_zero` only.")
    to_zero: ToZeroSettings | None = Field(
        default=None, description="The pool may have no backend while nobody asks for it; `{}` for the defaults. Together with `min: 0`."
    )

    @model_validator(mode="after")
    def _sleeps(self) -> Self:
        if self.min == 0 and self.to_zero is None:
            raise ValueError("min is 0, so that requests may find no engine; write to_zero: {} to have them held until one has started")
        if self.min > 0 and self.to_zero is not None:
            raise ValueError(f"to_zero is for pools that may have no engine, and min is {self.min:,}; write min: 0, or remove to_zero")
        return self


class PoolLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the load of one pool, or of its engines of one role. Sums over the engines that tell it (`telling`, of `up` usable
    ones)."""

    role: Role = "both"
    backends: int
    """Backends that are listed and do not drain, those that start or are down counted."""
    up: int = 0
    telling: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int | None = None
    """Uncached prompt tokens of the waiting requests; None where no engine says it."""
    queued: int = 0
    """Requests that wait in the gateway."""
    tokens_per_s: float = 0.0
    """Prefill rate of all usable engines; 0 while unknown."""
    kv_used: float = 0.0
    """Sum of the shares of their KV caches that are in use."""
    kv_telling: int = 0
    slots: float = 0.0
    """Requests that one engine is taken to bear; 0 while unknown."""
    ttft_p95_s: float | None = None
    """As measured within the last minute."""
    error_s: float = 0.0
    """The error of predicted times to the first token, at the 90th percentile."""
    deficit: float | None = None
    """Share of the requests of the last minute that missed their promise; None without promises."""
    prefilled: float | None = None
    """Share of the last minute that the usable engines computed prompts for, of the time that they have; None where no engine says it."""
    answered: float = 0.0
    """Requests whose answer began within the last minute."""
    held: int = 0
    """Requests that wait for a backend of a pool that may have none and has none up; 1 where one was turned away lately."""

    @property
    def requests(self) -> float:
        """Requests that run or wait, those in engines that tell nothing assumed to be as many as in the others."""
        return (self.running + self.waiting) * self.up / max(self.telling, 1) + self.queued

    @property
    def queue_tokens(self) -> float:
        """Uncached prompt tokens that wait, in engines and in the gateway, for engines that compute prompts."""
        if self.role == "decode":
            return 0.0
        each = USUAL_TOKENS if self.waiting_tokens is None or not self.waiting else self.waiting_tokens / self.waiting
        waiting = self.waiting_tokens if self.waiting_tokens is not None else self.waiting * USUAL_TOKENS
        return waiting * self.up / max(self.telling, 1) + self.queued * each

    @property
    def predicted_s(self) -> float | None:
        """The time to the first token that 95 of 100 requests will not exceed; None while nothing is known of it, and for engines that
        compute no prompts."""
        if self.role == "decode":
            return None
        waits = self.queue_tokens / self.tokens_per_s + self.error_s if self.tokens_per_s > 0 else None
        known = [value for value in (waits, self.ttft_p95_s) if value is not None]
        return max(known) if known else None

    @property
    def kv_pressure(self) -> float | None:
        """The KV that running and waiting requests take, of that which there is; above 1 some wait for it."""
        if not self.kv_telling:
            return None
        used = self.kv_used / self.kv_telling
        running = self.running * self.up / max(self.telling, 1)
        return used * max(self.requests, running) / running if running > 0 else used


class Need(msgspec.Struct, frozen=True):
    """What a load needs."""

    backends: float
    """Backends, not rounded; headroom included."""
    busy: float
    """Share of the usable backends that the load fills, without headroom; above 1 it is too much."""
    why: str
    known: bool = True
    """False where nothing is known of the load, so that the number should stay."""
    load: float | None = None
    """Backends that the load fills, without headroom and forecast: what a forecast is made of later. None where nothing is known of it."""
    forecast: float | None = None
    """Backends that the load is expected to need a lead later, headroom included; None without a forecast."""


def needed(load: PoolLoad, scale: ScaleSettings, growth: Growth = NO_GROWTH) -> Need:
    """The backends that the load needs, and that it will need with the growth, and why in words."""
    now = _needed_now(load, scale)
    if growth.backends is None or now.load is None:
        return now
    ahead = (now.load + growth.backends) / (1 - scale.headroom)
    most = floor(scale.max * (scale.predict.most if scale.predict is not None else 1.0) + 1e-9)
    ahead = min(ahead, most)
    asleep = scale.to_zero is not None and now.backends < LEAST_GROWTH and growth.backends < LEAST_GROWTH
    if asleep or not growth.backends or ahead <= now.backends:
        return msgspec.structs.replace(now, forecast=ahead)
    why = f"{growth.why}: the load fills {now.load:.1f} backends now"
    return msgspec.structs.replace(now, backends=ahead, forecast=ahead, why=why)


def _needed_now(load: PoolLoad, scale: ScaleSettings) -> Need:
    if load.held and not load.up:
        return Need(float(max(scale.min, 1)), 0.0, f"the pool is waking: no backend was up for {_counted(load.held, 'request')}", load=1.0)
    if not load.backends:
        waits = f"waiting for one: {_counted(load.queued, 'request')}" if load.queued else "nothing waits"
        return Need(float(scale.min), 0.0, f"the pool has no backend, and {waits}", load=0.0)
    if not load.up or not load.telling:
        return Need(
            float(load.backends), 0.0, f"of {_counted(load.backends, 'backend')} none tells its load: the number stays", known=False
        )
    sizes: list[tuple[float, str]] = []
    if load.slots > 0:
        sizes.append(
            (
                load.requests / load.slots,
                f"running or waiting: {_counted(round(load.requests), 'request')}, and an engine bears {load.slots:.0f}",
            )
        )
    if (pressure := load.kv_pressure) is not None:
        said = f"running and waiting requests take {pressure:.0%} of the KV cache, of which {scale.kv:.0%} may be used"
        sizes.append((load.up * pressure / scale.kv, said))
    if load.prefilled is not None and load.role != "decode":
        share = PREFILL[load.role] if scale.prefill is None else scale.prefill
        said = f"prompts take {load.prefilled:.0%} of the engines' time, of which {share:.0%} may be used"
        sizes.append((load.up * load.prefilled / share, said))
    if scale.to_zero is not None and not load.requests:
        lately = f"begun in the last minute: {_counted(round(load.answered), 'answer')}"
        sizes = [(min(load.answered, 0.5), lately if load.answered else "nothing was asked for a minute")]
    size, why = max(sizes, default=(float(load.up), f"no limit and no KV cache is told by {_counted(load.up, 'engine')}"))
    most = size / (1 - scale.headroom) if sizes else size
    if (predicted := load.predicted_s) is not None and predicted > scale.ttft_s:
        most, why = max(
            (most, why),
            (
                load.up * min(predicted / scale.ttft_s, MOST_GROWTH),
                f"the first token is predicted after {predicted:.2f} s at p95, {scale.ttft_s:g} s are meant: "
                f"{load.queue_tokens / load.up:.0f} tokens wait for each engine",
            ),
        )
    if (deficit := load.deficit) is not None and deficit > DEFICIT:
        most, why = max((most, why), (load.up + 1.0, f"{deficit:.0%} of the last minute's requests missed their promise"))
    return Need(most, size / load.up, why, load=size if sizes else None)


def missed_by(loads: Mapping[Role, PoolLoad], bounds: Mapping[Role, ScaleSettings]) -> Role | None:
    """The role whose engines missed promises are laid to: the one that needs most backends for each that it has. None where nothing is
    known of any."""
    needs = {role: needed(load, bounds[role]) for role, load in loads.items() if role in bounds and load.up}
    known = [(need.backends / loads[role].up, role) for role, need in needs.items() if need.known]
    return max(known)[1] if known else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Wanted(msgspec.Struct, frozen=True):
    """How many backends a pool should have."""

    wanted: int
    need: Need
    why: str
    settles_s: float = 0.0
    """Seconds until fewer are recommended, if no more are needed until then; 0 where the number is what the load needs."""


class ScaleHistory:
    """The needs of one pool over `scale_in_after_s`, and the recommendation that follows.

    Args:
        scale: the bounds.
    """

    def __init__(self, scale: ScaleSettings) -> None:
        self.scale: Final = scale
        self._needs: deque[tuple[float, int]] = deque()
        """The most that was needed, falling: the first is the most of the whole time."""
        self._since = 0.0
        self._last: float | None = None

    def note(self, load: PoolLoad, now: float, growth: Growth = NO_GROWTH) -> Wanted:
        """Take the load at `now` (seconds that only rise) and the growth that is expected, and recommend."""
        scale = self.scale
        need = needed(load, scale, growth)
        whole = ceil(need.backends - 1e-9)
        raw = min(max(whole, scale.min), scale.max)
        if self._last is None or now - self._last > max(scale.scale_in_after_s, 60.0):
            self._needs.clear()
            self._since = now  # nobody looked: what was needed meanwhile is not known
        self._last = now
        while self._needs and self._needs[-1][1] <= raw:
            self._needs.pop()
        self._needs.append((now, raw))
        while self._needs[0][0] < now - scale.scale_in_after_s:
            self._needs.popleft()
        # as many as now until the whole time was watched, which a start of the gateway begins anew
        young = now - self._since < scale.scale_in_after_s
        kept = max(raw, min(load.backends, scale.max)) if young or not need.known else raw
        at, most = self._needs[0]
        wanted = max(most, kept)
        until = self._since if wanted > most else at
        settles_s = max(until + scale.scale_in_after_s - now, 0.0) if wanted > raw and need.known else 0.0
        return Wanted(wanted, need, _said(need.why, wanted, whole, raw, settles_s), settles_s)


def _said(why: str, wanted: int, whole: int, raw: int, settles_s: float) -> str:
    if wanted > raw:
        return f"{why}; {raw} would do, and fewer are recommended in {settles_s:.0f} s" if settles_s else why
    if whole != raw:
        return f"{why}; {whole} would be needed, the pool's bounds allow {raw}"
    return why
