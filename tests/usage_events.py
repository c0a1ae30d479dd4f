"""Usage events for tests, and what they add up to."""

import datetime as dt
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from domain.usage import Usage
from tenancy.usage import SUMS, UsageEvent, UsageSums

DAY_MS = 86_400_000
FIRST_DAY = dt.date(2026, 1, 1)
FIRST_MS = 1_767_225_600_000
"""Its beginning."""


def event(n: int | str = 0, day: int = 0, **fields: Any) -> UsageEvent:
    known: dict[str, Any] = {
        "request_id": f"req-{n}",
        "at_unix_ms": FIRST_MS + day * DAY_MS + 3_600_000,
        "tenant": "acme",
        "project": "default",
        "key_id": "k1",
        "user": "",
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "pool": "p",
        "revision": "1",
        "lora": "",
        "outcome": "ok",
        "closing": "settle",
    }
    return UsageEvent(**{**known, **fields})


def random_event(n: int | str, rng: random.Random, days: int = 4) -> UsageEvent:
    """One of a few tenants, projects, keys, users, models and adapters."""
    tenant = rng.choice(["acme", "bolt", "core"])
    return event(
        n,
        rng.randrange(days),
        organisation=rng.choice(["", "north"]),
        priority_class=rng.choice(["", "default", "batch"]),
        asked_model=rng.choice(["", "larger"]),
        steps=rng.choice(["", "trim_output_tokens, model=m"]),
        reported=rng.choice(["", "prompt 1000000000000000000, completion -3"]),
        tenant=tenant,
        project=rng.choice(["default", "lab"]),
        key_id=f"{tenant}-{rng.randrange(3)}",
        user=rng.choice(["", "ann", "bob"]),
        model=rng.choice(["m", "large"]),
        lora=rng.choice(["", "support-1"]),
        usage=Usage(
            rng.randrange(10_000), rng.randrange(5_000), rng.randrange(1_000), rng.randrange(100), rng.randrange(600), rng.randrange(10**7)
        ),
        units=rng.randrange(10**7),
        cost_nanousd=rng.randrange(10**12),
        duration_ms=rng.randrange(60_000),
    )


def sums_of(events: Iterable[UsageEvent]) -> UsageSums:
    total = dict.fromkeys(SUMS, 0)
    for e in events:
        u = e.usage
        tokens = (u.prompt_tokens, u.completion_tokens, u.cached_tokens, u.reasoning_tokens)
        values = (1, *tokens, e.units, e.cost_nanousd, u.audio_seconds, u.audio_bytes)
        for name, value in zip(SUMS, values, strict=True):
            total[name] += value
    return UsageSums(**total)


def grouped(events: Iterable[UsageEvent], names: Iterable[str]) -> dict[tuple[str, ...], UsageSums]:
    """The truth behind `UsageQueries.totals`."""
    names = list(names)
    parts: dict[tuple[str, ...], list[UsageEvent]] = defaultdict(list)
    for e in events:
        parts[tuple(label(e, name) for name in names)].append(e)
    return {labels: sums_of(part) for labels, part in parts.items()}


def label(e: UsageEvent, name: str) -> str:
    if name == "day":
        return str(FIRST_DAY + dt.timedelta(days=(e.at_unix_ms - FIRST_MS) // DAY_MS))
    return str(getattr(e, "key_id" if name == "key" else name))
