"""Chooses what the judge looks at: finished requests whose redacted texts are in the request log, of tenants whose policies have `judge`.

Which requests those are follows from their ids, so that no gateway judges others than another one would. Requests come into the log by the
time at which they began, and a little after their end, their texts later still: so each look goes back over a window, and remembers what it
has seen.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from domain.clock import WallClock
from gateway.request_log.reader import RequestContent, opened_content
from policies.compile import PolicySet
from policies.rollout.assignment import place
from policies.rollout.in_force import ActiveRollouts, Running
from policies.schema import JudgePolicy
from tenancy.request_log import LoggedRequest, RequestFilter, RequestStore
from tenancy.responses import ResponseSealer

WINDOW_S: Final = 300.0
"""How long ago a request may have begun; those that take longer are not judged."""
SETTLE_S: Final = 3.0
"""From a request's end until its texts are expected to be in the log: workers are asked once a second."""
MOST_ROWS: Final = 2000
"""Finished requests of one look, the newest: at more than 400 a second the judge's samples are of the newest."""
MOST_SEEN: Final = 200_000
"""Ids that are remembered, twenty bytes each and their place: those of a window at the same rate."""


class _PromptLine(msgspec.Struct):
    """What a line of the access log says of the request's prompt."""

    rollout: str = ""
    prompt: str = ""


_decode_line: Final = msgspec.json.Decoder(_PromptLine).decode


class JudgeSample(msgspec.Struct, frozen=True):
    """One request to be judged."""

    request: LoggedRequest
    content: RequestContent
    policy: JudgePolicy
    scored: bool
    """Whether its answer is scored."""
    compared: Running | None = None
    """The rollout for which answers of both arms to its prompt are compared; None for none."""


class JudgeSamples:
    """Finds new samples in the request log.

    Args:
        left_out: tenant and project of the judge's own requests.
    """

    def __init__(self, store: RequestStore, sealer: ResponseSealer, wall: WallClock, left_out: tuple[str, str]) -> None:
        self._store = store
        self._sealer = sealer
        self._wall = wall
        self._left_out = left_out
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._since_us = 0

    def begin(self) -> None:
        """Leave out what ended before now, which another gateway's judge may have looked at."""
        self._since_us = int(self._wall() * 1e6)

    async def new(self, policies: PolicySet, rollouts: ActiveRollouts) -> list[JudgeSample]:
        """Samples that no look found before, the oldest first. Raises RequestLogAway."""
        now_us = int(self._wall() * 1e6)
        if not any(_may_judge(policy) for policy in (policies.everyone, *policies.by_tenant.values()) if policy is not None):
            return []
        rows = await self._store.page(RequestFilter(since_us=now_us - int(WINDOW_S * 1e6)), "newest", None, MOST_ROWS)
        last_us = now_us - int(SETTLE_S * 1e6)
        ended = [row for row in rows if self._since_us <= row.at_us + row.duration_us <= last_us and row.id not in self._seen]
        wanted = {row.id: chosen for row in ended if (chosen := self._chosen(row, policies, rollouts)) is not None}
        kept = await self._store.with_content([row for row in ended if row.id in wanted])
        samples = []
        for row in reversed(ended):
            self._seen[row.id] = None
            if row.id in kept and (stored := await self._store.content(row)) is not None:
                content = opened_content(self._sealer, stored)
                sample = None if content is None else _sample(row, content, *wanted[row.id])
                if sample is not None:
                    samples.append(sample)
        while len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return samples

    def _chosen(self, row: LoggedRequest, policies: PolicySet, rollouts: ActiveRollouts) -> tuple[JudgePolicy, bool, Running | None] | None:
        """The terms of a request, whether its answer is scored, and the rollout for which it is compared; None for neither."""
        policy = policies.for_tenant(row.tenant)
        terms = None if policy is None else policy.treating(row.project, row.model).judge
        if terms is None or row.outcome != "ok" or (row.tenant, row.project) == self._left_out:
            return None
        scored = place("judge/score", row.id) < terms.share
        running = _rollout_of(row, rollouts)
        compared = running if running is not None and place("judge/pair", row.id) < terms.pair_share else None
        return (terms, scored, compared) if scored or compared is not None else None


def _may_judge(policy: object) -> bool:
    """Whether a policy can lead to a sample: at any of its levels."""
    layers = getattr(policy, "layers", ())
    treated = [fields for layer in layers for fields in (*layer.for_project.values(), *layer.for_model.values())]
    return getattr(policy, "judge", None) is not None or any(fields.get("judge") is not None for fields in treated)


def _rollout_of(row: LoggedRequest, rollouts: ActiveRollouts) -> Running | None:
    """The rollout that asks for the judge and that a request took part in; None for none. Of two, one of its pool and one of its prompt,
    the request's id chooses."""
    asking = [rollout for rollout in rollouts.all() if rollout.judged and rollout.counting and rollout.is_about(row.tenant, row.model)]
    took_part = [rollout for rollout in asking if not rollout.of_prompt and row.pool in (rollout.baseline, rollout.canary)]
    if any(rollout.of_prompt for rollout in asking):
        line = _decode_line(row.line or b"{}")
        names = line.rollout.split(",")
        took_part += [
            rollout
            for rollout in asking
            if rollout.of_prompt and rollout.name in names and line.prompt in (rollout.baseline, rollout.canary)
        ]
    return took_part[int(place("judge/which", row.id) * len(took_part))] if took_part else None


def _sample(row: LoggedRequest, content: RequestContent, policy: JudgePolicy, scored: bool, compared: Running | None) -> JudgeSample | None:
    """The sample; None where the texts that it needs are not kept. A prompt that was cut is not answered again, and another version of a
    registered prompt is asked only where what the request said itself is kept."""
    scored = scored and bool(content.prompt and content.answer)
    if compared is not None and compared.of_prompt:
        compared = compared if content.prompted is not None else None
    elif not content.prompt or content.prompt_cut:
        compared = None
    return JudgeSample(row, content, policy, scored, compared) if scored or compared is not None else None
