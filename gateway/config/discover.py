"""Settings of where a pool's backends are found while the gateway runs: `pools[].discover`."""

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from backends.load_reports import MAX_RANKS
from domain.membership import EnginePorts, Role
from domain.strict import Strict
from gateway.config.addresses import checked_engine_url, checked_host
from gateway.config.secrets import File

_SERVICE: Final = re.compile(r"(^|\.)_")
"""The underscore that begins labels of SRV names: `_http._tcp.engines.example`."""

_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Names of Services, namespaces and ports (RFC 1123)."""

_SELECTOR: Final = re.compile(r"[A-Za-z0-9._/=!,() -]{1,1000}")


def _checked_label(text: str) -> str:
    if not _LABEL.fullmatch(text):
        raise ValueError(f"has {text[:64]!r}, which Kubernetes allows for no name; write small letters, digits and dashes")
    return text


def _checked_name(text: str) -> str:
    for label in text.split("."):
        _checked_label(label)
    return text


def _checked_selector(text: str) -> str:
    if not _SELECTOR.fullmatch(text):
        raise ValueError("is no label selector; write for instance app=vllm,revision=r2")
    return text


LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
KubernetesName = Annotated[str, StringConstraints(min_length=1, max_length=63), AfterValidator(_checked_label)]
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253), AfterValidator(_checked_name)]
PortNumber = Annotated[int, Field(ge=1, le=65_535)]


class PodLabelSettings(Strict):
    """Labels that a pod must have to be a backend of the pool, where a Service or a selector is shared by several pools."""

    pool: LabelValue | None = Field(
        default=None, description="What the label `tidegate/pool` must say; null: pods of every value, and without the label."
    )
    revision: bool = Field(
        default=False,
        description="Whether the label `tidegate/revision` must say the pool's `revision`. False: pods without the label are backends too.",
    )

    @model_validator(mode="after")
    def _some(self) -> "PodLabelSettings":
        if self.pool is None and not self.revision:
            raise ValueError("asks for no label; write pool: name, revision: true or both, or remove it")
        return self


class KubernetesSettings(Strict):
    """EndpointSlices, pods, an InferencePool or KServe's LLMInferenceService as the source of a pool's backends."""

    service: KubernetesName | None = Field(default=None, description="The Service whose endpoints are the backends.")
    selector: Annotated[str, AfterValidator(_checked_selector)] | None = Field(
        default=None,
        description="Label selector of the slices, which carry the labels of their Service; with `service` both have to hold.",
    )
    pods: Annotated[str, AfterValidator(_checked_selector)] | None = Field(
        default=None, description="Label selector of pods that are the backends, where they have no Service."
    )
    inference_pool: ObjectName | None = Field(
        default=None, description="The InferencePool (inference.networking.k8s.io/v1) whose pods, at its ports, are the backends."
    )
    llm_inference_service: ObjectName | None = Field(
        default=None, description="The LLMInferenceService of KServe whose pods are the backends."
    )
    namespace: KubernetesName | None = Field(default=None, description="Namespace of what is named above; null: the gateway's own.")
    port: PortNumber | KubernetesName | None = Field(
        default=None, description="Number or name of the engines' port; null where the slices or pods have a single one."
    )
    labels: PodLabelSettings | None = Field(
        default=None,
        description="Labels that a pod must have; with `service` or `selector` the pods behind the endpoints are read too. Null: none, but "
        "a label `tidegate/revision` that names another revision than the one written in the pool leaves the engine out.",
    )
    role: Role = Field(
        default="both",
        description="Role of the engines; the label `tidegate/role` of the slice or pod counts more, and `llm-d.ai/role` of a pod.",
    )
    address: Annotated[str, AfterValidator(checked_engine_url)] | None = Field(
        default=None, description="`https://host:port` of the API server; null: the cluster that the gateway runs in."
    )
    token_file: File | None = Field(
        default=None, description="File with the bearer token, read again when it is refused; null: the service account's."
    )
    ca: File | None = Field(
        default=None, description="PEM file with the CAs of the API server's certificate; null: the service account's, or the system's."
    )

    @model_validator(mode="after")
    def _some(self) -> "KubernetesSettings":
        slices = self.service if self.service is not None else self.selector
        if [slices, self.pods, self.inference_pool, self.llm_inference_service].count(None) != 3:
            raise ValueError(
                "names no backends, or them in two ways; write one of service: name (or selector: app=vllm, of EndpointSlices), "
                "pods: app=vllm, inference_pool: name and llm_inference_service: name"
            )
        if self.inference_pool is not None and self.port is not None:
            raise ValueError("has a port beside inference_pool; leave port out, the targetPorts of the InferencePool are used")
        return self

    @property
    def in_words(self) -> str:
        """What is looked for, in an operator's words."""
        if self.pods is not None:
            return f"pods {self.pods}"
        if self.inference_pool is not None:
            return f"InferencePool {self.inference_pool}"
        if self.llm_inference_service is not None:
            return f"LLMInferenceService {self.llm_inference_service}"
        return self.service or self.selector or ""


class EnginePortsSettings(Strict):
    """Further ports of the engines that are found, the same for each; of several engines on one address, as data-parallel ranks are, the
    next one has the next number."""

    kv_events: PortNumber | None = Field(
        default=None, description="Port where each engine publishes its KV events; null: the content of its cache is not known."
    )
    kv_replay: PortNumber | None = Field(
        default=None, description="Port where it answers replay requests; null: one lost batch makes the events untrusted."
    )
    load_push: PortNumber | None = Field(
        default=None, description="Port where it pushes its load; null: the load is polled only. Dialect `sglang` only."
    )
    load_push_ranks: int = Field(default=1, ge=1, le=MAX_RANKS, description="Ranks of each engine that push, on consecutive ports.")
    bootstrap: PortNumber | None = Field(
        default=None, description="Port where decode engines ask a `prefill` engine for KV. Dialect `sglang` only."
    )

    @model_validator(mode="after")
    def _whole(self) -> "EnginePortsSettings":
        if self.kv_replay is not None and self.kv_events is None:
            raise ValueError("has kv_replay without kv_events; write both, or none")
        return self

    def value(self) -> EnginePorts:
        """The ports as discovery takes them."""
        return EnginePorts(self.kv_events, self.kv_replay, self.load_push, self.load_push_ranks, self.bootstrap)


class DiscoverSettings(Strict):
    """The source of a pool's backends while the gateway runs: a file, a DNS name or Kubernetes."""

    file: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A YAML file with `backends`, relative to the settings file; read again whenever it changes.",
    )
    dns: str | None = Field(default=None, max_length=253, description="A DNS name that resolves to the backends.")
    record: Literal["a", "srv"] = Field(
        default="a", description="`a`: A and AAAA records, with `port`; `srv`: SRV records, which contain host and port."
    )
    port: int | None = Field(default=None, ge=1, le=65_535, description="Port of every backend, with `record: a`.")
    scheme: Literal["http", "https"] = Field(default="http", description="Scheme of the URLs of backends found by DNS or Kubernetes.")
    kubernetes: KubernetesSettings | None = Field(default=None, description="Endpoints or pods of a cluster that are the backends.")
    every_s: float = Field(default=5.0, ge=0.5, le=3600, description="Time between two resolutions of the name.")
    ports: EnginePortsSettings | None = Field(
        default=None, description="Further ports of engines found by DNS or Kubernetes, for KV events, pushed load and KV hand-over."
    )

    @property
    def in_words(self) -> str:
        """The source in an operator's words."""
        if self.kubernetes is not None:
            return f"Kubernetes {self.kubernetes.in_words}"
        return f"file {self.file}" if self.file is not None else f"DNS {self.dns}"

    @field_validator("dns")
    @classmethod
    def _name(cls, dns: str | None) -> str | None:
        if dns is not None:
            checked_host(_SERVICE.sub(r"\1", dns))
        return dns

    @model_validator(mode="after")
    def _one(self) -> "DiscoverSettings":
        if [self.file, self.dns, self.kubernetes].count(None) != 2:
            raise ValueError(
                "names no place, or two; write one of {file: backends.yaml}, {dns: name, port: 8000} and {kubernetes: {service: name}}"
            )
        if self.kubernetes is not None and self.port is not None:
            raise ValueError("has a port beside kubernetes; write it into kubernetes")
        if self.file is not None and self.ports is not None:
            raise ValueError("has ports beside file; write kv_events, load_push and bootstrap_port of each backend into the file")
        if self.dns is not None and (self.port is None) != (self.record == "srv"):
            raise ValueError("does not say which port; write port with record: a, and none with record: srv, whose answer has it")
        return self
