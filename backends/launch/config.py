"""A launch configuration: how one class of engine is started so that the gateway can use it. A strict model of the YAML.

The files are in `configs/`; each is merged over the flags that the gateway needs on every engine of its kind (`configs/shared/`), flag by
flag. This module reads no file and starts nothing; `manifest.py` checks whether a flag exists.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, StringConstraints

from domain.strict import Strict

EngineName = Literal["vllm", "sglang"]
Scalar = str | int | float
FlagName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=80)]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=80)]


class Hardware(Strict):
    """The hardware that one engine process needs."""

    gpus: int = Field(ge=0, le=64, description="GPUs this process uses; 0 for a CPU engine.")
    gpu_memory_gib: float | None = Field(default=None, gt=0, le=4096, description="Memory of one GPU, GiB.")
    memory_gib: int = Field(default=64, ge=1, le=16_384, description="Memory that this process needs on its machine, in GiB.")
    shm_gib: int = Field(default=16, ge=1, le=1024, description="Shared memory in GiB: the ranks of one engine communicate through it.")
    cpus: int = Field(default=8, ge=1, le=512, description="Processor cores this process needs.")


class SizingSettings(Strict):
    """The model and memory that `tidegate engine size` computes with when no other model is named."""

    model: dict[str, JsonValue] = Field(description="The members of the model's config.json that determine its size.")
    context: int = Field(ge=1, le=100_000_000, description="Tokens of a sequence, prompt and answer, at which concurrency is computed.")
    reserve_gib: float = Field(
        default=0.0, ge=0, le=1024, description="Memory per GPU for activations, CUDA graphs and buffers, in GiB: an assumption."
    )
    kv_gib: float | None = Field(default=None, gt=0, description="KV memory in GiB, for an engine that is given the size directly (CPU).")


class LaunchConfig(Strict):
    """One launch configuration, merged over the shared part of its engine."""

    name: str = Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$",
        description="Name of the configuration; it is valid for Kubernetes and systemd too.",
    )
    engine: EngineName = Field(description="The engine that the configuration starts.")
    version: str = Field(pattern=r"^\d+\.\d+\.\d+$", description="The engine release whose argument parser the flags are checked against.")
    summary: str = Field(min_length=1, max_length=160, description="What the configuration is for, in one line.")
    image: str = Field(min_length=1, description="Container image for compose and Kubernetes.")
    command: list[str] = Field(min_length=1, description="The program and the arguments in front of the flags.")
    image_command: list[str] | None = Field(default=None, description="`command` inside the container image, where it differs.")
    parameters: dict[ParameterName, Scalar] = Field(
        description="Parameters that `--set` changes, with their defaults; `{name}` elsewhere is replaced by the value."
    )
    flags: dict[FlagName, JsonValue] = Field(
        description="Flags without dashes; true for a switch, a mapping for JSON, a list for several values."
    )
    environment: dict[VariableName, str] = Field(description="Environment variables of the process.")
    hardware: Hardware = Field(description="The hardware that the process needs.")
    ready_s: int = Field(default=900, ge=10, le=7200, description="Longest time from start to healthy, in seconds.")
    sizing: SizingSettings = Field(description="The model and memory that sizes are computed from.")


def laid_over(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` merged over `shared`: mappings of flags, parameters and variables member by member, everything else whole.

    A member that is null in `own` removes the shared one.
    """
    merged = {**shared, **own}
    for part in ("flags", "parameters", "environment"):
        upper = own.get(part) or {}
        if not isinstance(upper, dict):
            continue  # the model's validation reports it
        both = {**shared.get(part, {}), **upper}
        merged[part] = {name: value for name, value in both.items() if value is not None}
    return merged
