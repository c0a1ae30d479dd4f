"""The fleet file in YAML that describes a simulated fleet: engines, gateway replicas, delays of their signals, faults and tenants."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from domain.strict import Strict
from routing.disaggregation import DisaggregationSettings
from routing.simulation.timing import CLASS_GPUS, CLASSES, StepTiming


def _known(name: str) -> str:
    if name not in CLASSES:
        raise ValueError(f"{name!r} is no class of machine; write one of {', '.join(CLASSES)}")
    return name


class MeasuredRates(Strict):
    """The rates of an engine that was profiled, in seconds."""

    prefill_s: float = Field(gt=0, le=1e3, description="Fixed part of a prompt; the simulation takes that of a step.")
    prefill_s_token: float = Field(gt=0, le=1e3, description="For each token of a prompt.")
    prefill_s_token_ctx: float = Field(gt=0, le=1e3, description="For each token of a prompt and token of its context.")
    step_s: float = Field(gt=0, le=1e3, description="Fixed part of a step.")
    step_s_seq: float = Field(gt=0, le=1e3, description="For each sequence that decodes.")
    step_s_token: float = Field(gt=0, le=1e3, description="For each token in the contexts of those.")


class Engines(Strict):
    """Engines of one kind."""

    machine: Annotated[str, AfterValidator(_known)] | None = Field(
        default=None, description="Class of model and machine, whose timing constants apply; or write `rates`."
    )
    rates: MeasuredRates | None = Field(
        default=None, description="The `rates` of a profile (`tidegate model profile`), in place of a class; needs `kv_tokens`."
    )
    count: int = Field(default=1, ge=1, le=1024, description="Number of engines.")
    slower: float = Field(default=1.0, gt=0, le=100, description="Factor on all step times; 2 is a machine of half the speed.")
    prefill_slower: float = Field(
        default=1.0, gt=0, le=100, description="Factor on the time per prompt token; for sensitivity, 0.6 and 1.6."
    )
    kv_tokens: int | None = Field(default=None, ge=16, description="KV cache in tokens; null for that of the class.")
    max_num_seqs: int = Field(default=256, ge=1, le=4096, description="Most sequences in a batch.")
    token_budget: int = Field(default=2048, ge=2, le=1_000_000, description="Most tokens of a step; more than `max_num_seqs`.")
    context_tokens: int = Field(default=131_072, ge=1, description="Longest prompt and answer together.")
    by_priority: bool = Field(default=False, description="Whether waiting requests are ordered by priority before their order of arrival.")
    lora_slots: int = Field(default=0, ge=0, le=1024, description="Adapters that can be loaded at a time.")
    lora_load_s: float = Field(default=1.0, ge=0, description="Seconds to load an adapter.")
    role: Literal["both", "prefill", "decode"] = Field(
        default="both",
        description="Whether the engines serve requests whole (`both`), only compute prompts (`prefill`), or only generate (`decode`).",
    )
    region: str = Field(default="", max_length=64, description="Region of the engines.")
    price: float = Field(default=0.0, ge=0, description="Price of a token on these engines, relative to the others.")
    gpus: int | None = Field(
        default=None, ge=0, le=64, description="GPUs of each engine, for the cost of a plan; null for those of the class, or 1."
    )

    @model_validator(mode="after")
    def _has_room_for_prefill(self) -> "Engines":
        if self.token_budget <= self.max_num_seqs:
            raise ValueError(f"token_budget {self.token_budget} leaves no room beside {self.max_num_seqs} sequences; make it larger")
        return self

    @model_validator(mode="after")
    def _has_one_speed(self) -> "Engines":
        if (self.machine is None) == (self.rates is None):
            raise ValueError("has no speed, or two; write either machine, a class, or rates, of a profile")
        if self.rates is not None and self.kv_tokens is None:
            raise ValueError("has rates and no kv_tokens; write the kv_tokens of the profile too")
        return self

    @property
    def gpus_each(self) -> int:
        """GPUs of one engine."""
        return CLASS_GPUS.get(self.machine or "", 1) if self.gpus is None else self.gpus

    @property
    def timing(self) -> StepTiming:
        """Timing constants of these engines."""
        timing = self._known_timing.times(self.slower, self.prefill_slower)
        return timing if self.kv_tokens is None else StepTiming(timing.c0, timing.c1, timing.c1a, timing.c2, timing.c3, self.kv_tokens)

    @property
    def _known_timing(self) -> StepTiming:
        rates = self.rates
        if rates is None:
            return CLASSES[self.machine or ""]
        prompt = (rates.prefill_s_token, rates.prefill_s_token_ctx)
        constants = (rates.step_s, *prompt, rates.step_s_seq, rates.step_s_token)
        c0, c1, c1a, c2, c3 = (seconds * 1e3 for seconds in constants)
        return StepTiming(c0, c1, c1a, c2, c3, self.kv_tokens or 0)


class SignalDelays(Strict):
    """How gateways learn what engines do."""

    every_s: float = Field(
        default=0.1, ge=0.01, le=60, description="Seconds between two readings of an engine's load; the gateway's `signals_s`."
    )
    delay_s: float = Field(default=0.0, ge=0, le=60, description="Age of a load reading when it arrives.")
    queued_tokens: bool = Field(
        default=False, description="Whether engines report the prompt tokens that wait there; vLLM reports only the waiting requests."
    )
    kv_events: bool = Field(
        default=True, description="Whether engines publish KV events; otherwise replicas estimate caches from the requests they sent."
    )
    kv_delay_s: float = Field(default=0.01, ge=0, le=60, description="Age of a KV event when it arrives.")
    detect_s: float = Field(default=1.0, ge=0, le=600, description="Seconds until the death or the restart of an engine is detected.")


class Objective(Strict):
    """The latencies that a good answer meets."""

    ttft_s: float = Field(default=2.0, gt=0, description="Longest time to the first token, in seconds.")
    tpot_s: float = Field(default=0.1, gt=0, description="Longest time per token after the first, in seconds.")


class EngineFault(Strict):
    """A fault of one engine."""

    at_s: float = Field(ge=0, description="When the fault begins, in seconds.")
    engine: int = Field(ge=0, description="Number of the engine, from 0 in the order of the file.")
    kind: Literal["kill", "slow", "stall"] = Field(
        description="Kind of fault: the process dies (`kill`), everything takes longer (`slow`), or nothing progresses (`stall`)."
    )
    for_s: float = Field(gt=0, description="Seconds until the engine has recovered; a killed one comes back with an empty cache.")
    factor: float = Field(default=4.0, gt=1, description="For `slow`: factor on all times.")


class SimulatedTenant(Strict):
    """A tenant's token limit and priority."""

    tokens_per_s: float | None = Field(
        default=None, gt=0, description="Prompt and answer tokens a second; requests above the rate are refused."
    )
    burst_s: float = Field(default=60.0, gt=0, description="Seconds of that rate that may be used at once.")
    priority: float = Field(default=0.0, ge=-1, le=1, description="Priority from -1 to 1, higher first.")


class FleetFile(Strict):
    """A fleet file."""

    engines: list[Engines] = Field(min_length=1, max_length=64, description="Engines, one entry per kind.")
    replicas: int = Field(default=1, ge=1, le=64, description="Gateway processes, which share the requests at random.")
    siblings_s: float = Field(
        default=0.025,
        ge=0,
        le=60,
        description="Seconds between two exchanges of what replicas tell each other of the requests they sent; 0: they tell nothing.",
    )
    hold_s: float = Field(
        default=0.6,
        ge=0,
        le=3600,
        description="Seconds of uncached prompts that may wait in an engine before requests wait in the gateway's queue; 0 for no bound.",
    )
    signals: SignalDelays = Field(default=SignalDelays(), description="Delays of the engines' signals.")
    slo: Objective = Field(default=Objective(), description="The latency objective of a good answer.")
    faults: list[EngineFault] = Field(default=[], max_length=1000, description="Faults of engines.")
    tenants: dict[str, SimulatedTenant] = Field(default={}, description="Tenants with a limit or a priority; others have none.")
    disaggregation: DisaggregationSettings | None = Field(
        default=None, description="Cost of a KV transfer from one engine to another; null: requests are not split between engines."
    )
    known_output: bool = Field(default=False, description="Whether gateways know the length of answers in advance: an oracle.")

    @model_validator(mode="after")
    def _has_what_breaks(self) -> "FleetFile":
        count = sum(kind.count for kind in self.engines)
        for fault in self.faults:
            if fault.engine >= count:
                raise ValueError(f"faults: there is no engine {fault.engine}; there are {count}, from 0 to {count - 1}")
        return self

    @model_validator(mode="after")
    def _has_both_roles(self) -> "FleetFile":
        roles = {kind.role for kind in self.engines}
        if roles != {"both"} and self.disaggregation is None:
            raise ValueError("engines with the role prefill or decode need `disaggregation`, which says what handing KV over costs")
        if ("prefill" in roles) != ("decode" in roles) and "both" not in roles:
            raise ValueError("engines with the role prefill need some with the role decode, and the other way round")
        return self
