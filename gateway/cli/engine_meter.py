"""Measures a running engine: how long prompts take to their first token, and decode steps by batch and context. Blocking, with threads.

`EngineMeter` asks one engine. `measured` runs a plan of prompts and batches, those that say most first, and stops when its time is over.
Prompts are random token ids, so that no two share a prefix and nothing is cached; their lengths are those that the engine counts.

A batch of n streams is measured while all n of them decode: from the last of their first tokens to the first of their ends. The step is the
time between two tokens of a stream there.

Busy machines hold tokens back and deliver many at once, and a step that is measured in such a burst is many times too short. So a batch
decodes together for a quarter of a second at least, where its contexts have the room, and the median of three batches counts. Where they
have not, the streams must decode together for a share of the time that they waited for their first tokens: those that were held back come
after a wait that is as long as all of their steps.
"""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from statistics import median
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from backends.signals import Signals
from domain.clock import Clock
from gateway.cli.engine_access import EngineAccess
from routing.profile import PromptPoint, StepPoint

ANSWER_WITHIN_S: Final = 300.0
"""Longest silence of the engine: a prompt of 100,000 tokens on a processor takes minutes."""
LEAST_ID: Final = 200
IDS: Final = 1000
"""The token ids of prompts, of a range that every vocabulary has behind its special tokens."""
REPEATS: Final = 3
"""Prompts of each length, and batches of each kind; the median counts, so that one interruption does not."""
MOST_REPEATS: Final = 9
STEADY_S: Final = 1.0
"""A batch that decoded together for so long is not repeated: what holds it up once hardly changes its mean."""
ENOUGH_S: Final = 0.5
"""Prompts that are quick are repeated more often, up to `MOST_REPEATS`, until they took this long together."""
WINDOW_S: Final = 0.25
"""The streams of a batch decode together for so long, where longer answers achieve it: 50 to 100 times the time slice of a busy machine."""
BATCH_TOKENS: Final = 48
"""Tokens of each answer of a batch: enough steps for a mean, and a context that hardly grows."""
BURST: Final = 0.25
"""Tokens that came in less than this share of the wait for the first of them came in a burst, if that was less than `WINDOW_S` too."""
LONGEST: Final = 16
"""How much longer the answers of a batch become at most whose streams did not decode together, or not for long enough."""
FEW_TOKENS: Final = 64
"""Tokens of others that disturb no measurement: some health checks."""
LEAST_STEPS: Final = 8
"""Steps that all streams of a batch decode together; a batch with fewer says nothing."""


class MeterFault(Exception):
    """The engine does not answer as it must to be measured; the message says what it did."""


class TimedStream(NamedTuple):
    """One streamed answer: when it was asked for, when its tokens came, and what the engine counted."""

    asked: float
    tokens_at: list[float]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int


class Measures(Protocol):
    """Asks one engine."""

    def stream(self, prompt_tokens: int, output_tokens: int) -> TimedStream:
        """One answer of so many tokens to a new prompt. Raises MeterFault."""
        ...


class EngineMeter:
    """Asks one engine over HTTP.

    Args:
        url: where it listens.
        model: the name to ask for.
        access: its API key, and TLS towards it.
        rng: draws the prompts.
    """

    def __init__(self, url: str, model: str, access: EngineAccess, rng: random.Random, clock: Clock) -> None:
        self._url = url.rstrip("/") + "/v1/completions"
        self._verify = access.verify(url)
        self._model = model
        self._headers = access.headers
        self._rng = rng
        self._clock = clock
        self.answered: list[TimedStream] = []
        """Every answer so far."""

    def stream(self, prompt_tokens: int, output_tokens: int) -> TimedStream:
        # imported only here: the import takes longer than all of `--help`
        import httpx

        ids = [LEAST_ID + self._rng.randrange(IDS) for _ in range(prompt_tokens)]
        body = {"model": self._model, "prompt": ids, "max_tokens": output_tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        try:
            with httpx.Client(timeout=ANSWER_WITHIN_S, trust_env=False, verify=self._verify) as client:
                # the connection stands before the clock starts: gateways keep theirs open
                client.get(self._url.removesuffix("/completions") + "/models", headers=self._headers)
                asked = self._clock()
                content = msgspec.json.encode({**body, "stream_options": {"include_usage": True}})
                headers = {"content-type": "application/json", **self._headers}
                with client.stream("POST", self._url, content=content, headers=headers) as reply:
                    if reply.status_code != 200:
                        raise MeterFault(f"/v1/completions answers {reply.status_code}: {reply.read()[:200].decode(errors='replace')}")
                    self.answered.append(answer := self._read(asked, reply.iter_lines()))
                    return answer
        except (httpx.HTTPError, OSError) as error:
            raise MeterFault(f"/v1/completions: {type(error).__name__}: {str(error)[:200]}") from None

    def _read(self, asked: float, lines: Iterator[str]) -> TimedStream:
        tokens_at, usage = list[float](), dict[str, Any]()
        for line in lines:
            if not line.startswith("data:") or line.endswith("[DONE]"):
                continue
            now = self._clock()
            try:
                event = msgspec.json.decode(line[5:])
            except msgspec.DecodeError:
                raise MeterFault(f"/v1/completions sends an event that is no JSON: {line[:100]}") from None
            if not isinstance(event, dict) or event.get("error"):
                raise MeterFault(f"/v1/completions sends an error: {line[:200]}")
            usage = event.get("usage") or usage
            if event.get("choices"):
                tokens_at.append(now)
        if not tokens_at or not isinstance(usage.get("prompt_tokens"), int):
            raise MeterFault("/v1/completions sends no tokens, or no usage at their end")
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or 0
        return TimedStream(asked, tokens_at, usage["prompt_tokens"], usage.get("completion_tokens") or len(tokens_at), cached)


class MeterPlan(NamedTuple):
    """What is measured."""

    prompts: tuple[int, ...]
    held_out: tuple[int, ...]
    batches: tuple[tuple[int, int], ...]
    """Sequences, and tokens of their prompts."""
    context: int | None = None
    """Most tokens of a prompt and its answer; None where it is not known."""

    @property
    def points(self) -> int:
        """Number of measurements."""
        return len(self.prompts) + len(self.held_out) + len(self.batches)


def plan_for(longest: int, sequences: int, context: int | None = None, kv_tokens: int | None = None) -> MeterPlan:
    """A plan of six prompt lengths up to `longest`, three held out between them, and batches up to `sequences` at two contexts.

    Args:
        context: most tokens of a prompt and its answer.
        kv_tokens: capacity of the KV cache. A batch takes half of it at most, or the engine would preempt what is measured; three batches
            remain in any case.
    """
    lengths = sorted({max(16, round(longest / 2**power)) for power in range(6)})
    between = [round((low * high) ** 0.5) for low, high in itertools.pairwise(lengths)]
    sizes = [size for power in range(8) if (size := 2**power) <= sequences]
    # three rates need three measurements, also of an engine with one sequence
    contexts = sorted({max(16, longest // 16), max(32, longest // 2), *((max(24, longest // 4),) if sequences == 1 else ())})
    batches = [(size, prompt) for size in sizes for prompt in contexts]
    batches = [batch for number, batch in enumerate(batches) if number < 3 or kv_tokens is None or batch[0] * batch[1] <= kv_tokens / 2]
    return MeterPlan(tuple(lengths), tuple(between[1::2]), tuple(batches), context)


def tokens_of_others(answered: Sequence[TimedStream], before: Signals, after: Signals) -> int:
    """The tokens, of prompts and answers, that the engine counted between two readings beyond those of these answers: others had them.

    0 where it counts neither, and for so few that they may be anybody's health checks, or a difference of counting.
    """
    others = 0
    for was, now, mine in (
        (before.prefill_tokens, after.prefill_tokens, sum(answer.prompt_tokens for answer in answered)),
        (before.generated_tokens, after.generated_tokens, sum(answer.output_tokens for answer in answered)),
    ):
        if was is not None and now is not None and (more := now - was - mine) > max(FEW_TOKENS, mine // 20):
            others += more
    return others


def measured(
    meter: Measures, plan: MeterPlan, over: Callable[[], bool], advance: Callable[[str], None]
) -> tuple[list[PromptPoint], list[StepPoint]]:
    """Run a plan.

    Args:
        over: whether the time for it is over; what is left is then skipped, but for three measurements of each kind.
        advance: called with what was measured, after each measurement. What it raises ends the measuring.

    Raises:
        MeterFault: the engine does not answer as it must.
    """
    for length in (plan.prompts[0], plan.prompts[-1]):
        meter.stream(length, 4)  # the first requests load what later ones find loaded
    prompts, steps = list[PromptPoint](), list[StepPoint]()
    for number, length in enumerate(_ends_first(plan.prompts)):
        if number < 3 or not over():
            prompts.append(_prompt(meter, length, held_out=False))
            advance(f"prompt of {length:,} tokens: {prompts[-1].seconds:.3f} s")
    short = list[tuple[int, int]]()
    for sequences, context in _ends_first(plan.batches):
        if len(steps) < 3 or not over():
            step = _batch(meter, sequences, context, plan.context)
            steps += [] if step is None else [step]
            short += [(sequences, context)] if step is None else []
            advance(f"batch of {sequences}: {'too short' if step is None else f'{step.seconds * 1e3:.1f} ms a step'}")
    steps += _again(meter, short, plan, 3 - len(steps))
    for length in plan.held_out:
        if not over():
            prompts.append(_prompt(meter, length, held_out=True))
            advance(f"held-out prompt of {length:,} tokens: {prompts[-1].seconds:.3f} s")
    return prompts, steps


def _again(meter: Measures, short: Sequence[tuple[int, int]], plan: MeterPlan, missing: int) -> list[StepPoint]:
    """The steps of batches that were too short at first, until there are as many as are missing: what held them up may be over.

    Raises:
        MeterFault: fewer were found.
    """
    found = dict[tuple[int, int], StepPoint]()
    for batch in (*short, *short):
        step = _batch(meter, *batch, plan.context) if len(found) < missing and batch not in found else None
        found |= {} if step is None else {batch: step}
    if len(found) < missing:
        together = f"streams decoded together in only {3 - missing + len(found)} batches of {len(plan.batches)}, and three are needed"
        raise MeterFault(f"{together}; let nothing else use its machine, or measure longer contexts or more sequences")
    return list(found.values())


def _ends_first(items: Sequence[Any]) -> list[Any]:
    """The first, the last and the middle one first: three measurements that are far apart fix three rates."""
    if len(items) < 3:
        return list(items)
    first = [0, len(items) - 1, len(items) // 2]
    return [items[place] for place in (*first, *(place for place in range(len(items)) if place not in first))]


def _prompt(meter: Measures, length: int, *, held_out: bool) -> PromptPoint:
    answers, took = list[TimedStream](), 0.0
    while len(answers) < REPEATS or (len(answers) < MOST_REPEATS and took < ENOUGH_S):
        answers.append(meter.stream(length, 1))
        took += answers[-1].tokens_at[0] - answers[-1].asked
    if any(answer.cached_tokens > length // 10 for answer in answers):
        raise MeterFault("it had a random prompt in its prefix cache: it cannot be measured so")
    tokens = round(median(answer.prompt_tokens for answer in answers))
    return PromptPoint(tokens, median(answer.tokens_at[0] - answer.asked for answer in answers), held_out)


def _batch(meter: Measures, sequences: int, prompt: int, context: int | None) -> StepPoint | None:
    """The step of a batch; None when its streams decoded too little together, however long they were."""
    # streams begin one after the other; longer answers make them overlap
    output = BATCH_TOKENS + 2 * sequences
    room = output * LONGEST if context is None else max(output, min(output * LONGEST, context - prompt - 1))
    for tries_left in (2, 1, 0):
        answers = _together(meter, sequences, prompt, output)
        step, window_s = step_of(answers), _window_s(answers)
        if step is not None and (window_s >= WINDOW_S or output == room or not tries_left):
            repeats = REPEATS if window_s < STEADY_S else 1
            again = (step_of(_together(meter, sequences, prompt, output)) for _ in range(repeats - 1))
            points = sorted([step, *(point for point in again if point is not None)], key=lambda point: point.seconds)
            return points[len(points) // 2]
        longer = 4 * output if step is None else output + ceil(1.2 * (WINDOW_S - window_s) / step.seconds)
        output = min(room, longer)
    return None


def _window_s(answers: Sequence[TimedStream]) -> float:
    """How long all of these answers decoded; below 0 when they never did."""
    return min(answer.tokens_at[-1] for answer in answers) - max(answer.tokens_at[0] for answer in answers)


def _together(meter: Measures, sequences: int, context: int, output: int) -> list[TimedStream]:
    """So many answers at once. Raises MeterFault."""
    answers: list[TimedStream] = []
    faults: list[MeterFault] = []

    def ask() -> None:
        try:
            answers.append(meter.stream(context, output))
        except MeterFault as fault:
            faults.append(fault)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(sequences)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return answers


def step_of(answers: Sequence[TimedStream]) -> StepPoint | None:
    """The step while all of these answers decoded; None when that were fewer than `LEAST_STEPS`, or they came in a burst."""
    begin, end = max(answer.tokens_at[0] for answer in answers), min(answer.tokens_at[-1] for answer in answers)
    if end - begin < min(WINDOW_S, BURST * (begin - max(answer.asked for answer in answers))):
        return None
    gaps, contexts = list[float](), list[float]()
    for answer in answers:
        inside = [at for at in answer.tokens_at if begin <= at <= end]
        # an event may carry several tokens
        per_event = answer.output_tokens / len(answer.tokens_at)
        if len(inside) * per_event < LEAST_STEPS or len(inside) < 2:
            return None
        gaps.append((inside[-1] - inside[0]) / ((len(inside) - 1) * per_event))
        middle = answer.tokens_at.index(inside[0]) + len(inside) / 2
        contexts.append(answer.prompt_tokens + middle * per_event)
    return StepPoint(len(answers), sum(contexts), sum(gaps) / len(gaps))
