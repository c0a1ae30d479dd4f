"""`tidegate.yaml` as a strict model: every field, its bounds, default and meaning; docs/configuration.md is made from it.

Secrets stand here as references only. Knows no file, no environment and no component that is configured by it; numbers
carry their unit in the name.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from domain.strict import Strict
from gateway.addresses import checked_host_header, checked_origin, split_address, sqlite_file
from gateway.settings_backend import BackendSettings, Name
from gateway.settings_discover import DiscoverSettings, checked_networks
from gateway.settings_lora import LoraSettings

File = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Origin = Annotated[str, AfterValidator(checked_origin)]
HostHeader = Annotated[str, AfterValidator(checked_host_header)]


class SecretReference(Strict):
    """Where a secret lies: exactly one of the two."""

    file: File | None = Field(default=None, description="A file that holds it, relative to the settings file.")
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="An environment variable that holds it.")

    @model_validator(mode="before")
    @classmethod
    def _no_literal(cls, value: Any) -> Any:
        if isinstance(value, str | int | float):
            raise ValueError("holds a secret itself; write {file: path} or {env: NAME}")
        return value

    @model_validator(mode="after")
    def _one(self) -> "SecretReference":
        if (self.file is None) == (self.env is None):
            raise ValueError("names no place, or two; write either {file: path} or {env: NAME}")
        return self


class Bound(Strict):
    """Something that listens."""

    bind: str = Field(description="Address and port to listen on; port 0 picks a free one.")

    @field_validator("bind")
    @classmethod
    def _parses(cls, bind: str) -> str:
        split_address(bind)
        return bind

    @property
    def bind_address(self) -> tuple[str, int]:
        """Host and port; the host of an IPv6 address is without brackets."""
        return split_address(self.bind)


class Tls(Strict):
    """TLS on the data port, 1.2 or newer. Both paths are absolute once settings are loaded."""

    certificate: File = Field(description="PEM file with the certificate chain, relative to the settings file.")
    private_key: File = Field(description="PEM file with its key, not encrypted, relative to the settings file.")


class LimitSettings(Strict):
    """What one caller's connection may do; `gateway/http/edge/limits.py` gives the reasons."""

    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body; larger ones get a 413.")
    max_header_bytes: int = Field(default=16 * 1024, ge=1024, le=1024**2, description="Largest request head, names and values together.")
    max_headers: int = Field(default=64, ge=8, le=1000, description="Header lines of one request.")
    max_connections: int = Field(
        default=20_000, ge=1, le=1_000_000, description="Callers' connections per worker; beyond it the longest idle one is closed."
    )
    header_timeout_s: Seconds = Field(default=10.0, description="From a request's first byte to the end of its head.")
    body_timeout_s: Seconds = Field(default=30.0, description="From the end of the head to the end of the body.")
    min_body_rate_bytes_per_s: int = Field(default=1024, ge=0, description="Average a body must keep after its first 5 s; 0 for none.")
    keepalive_s: Seconds = Field(default=75.0, description="How long a connection may be idle between requests.")
    reply_buffer_bytes: int = Field(
        default=256 * 1024, ge=4096, le=64 * 1024**2, description="Unsent reply bytes at which the engine is paused."
    )
    slow_reader_s: Seconds = Field(default=30.0, description="How long a reply may stay paused before its caller is cut off.")


class DataSettings(Bound):
    """The data port: inference only."""

    bind: str = Field(
        default="127.0.0.1:8080", description="Address and port of the data port: host:port or [v6]:port; port 0 picks a free one."
    )
    tls: Tls | None = Field(default=None, description="TLS; without it, plain HTTP.")
    cors_origins: list[Origin] = Field(
        default=[], max_length=1000, description='Origins whose pages may call, exact; ["*"] for any; empty for none.'
    )
    hosts: list[HostHeader] = Field(
        default=[], max_length=1000, description="Host header values served (with the port, where callers send one); empty for any."
    )
    limits: LimitSettings = Field(default=LimitSettings(), description="Bounds of callers' connections.")


class AdminSettings(Bound):
    """The admin port: probes, metrics, version."""

    bind: str = Field(default="127.0.0.1:8081", description="Address and port of the admin port; keep it away from callers.")


def _check_database_url(url: str) -> None:
    # imported only here: it takes 0.4 s, which nobody with SQLite should wait for before `--help`
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        driver = make_url(url).drivername
    except (ArgumentError, ValueError):
        raise ValueError("is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
    if driver != "postgresql":
        raise ValueError("names a database that is not supported; write sqlite:///file.db or postgresql://user@host/database")


class StoreSettings(Strict):
    """Where state lies, by URL."""

    sql: str = Field(
        default="sqlite:///tidegate.db",
        description="Tenants and keys: `sqlite:///file` (relative to the settings file) or `postgresql://…`.",
    )

    @field_validator("sql")
    @classmethod
    def _known(cls, url: str) -> str:
        file = sqlite_file(url)
        if file in ("", ":memory:"):
            raise ValueError("keeps keys in memory, where other processes cannot see them; write sqlite:///file.db")
        if file is None:
            _check_database_url(url)
        elif "?" in file:
            raise ValueError("has options, and a SQLite file takes none; write sqlite:///file.db")
        return url


class SecretSettings(Strict):
    """Secrets, by reference."""

    pepper: SecretReference | None = Field(
        default=None,
        description="What key digests are keyed with. Needed with Postgres; with SQLite the default is `tidegate.pepper` beside the "
        "database, made on first use.",
    )

    admin_token: SecretReference | None = Field(
        default=None,
        description="The token that changing the fleet over the admin port asks for, at least 24 characters; without it, the admin port "
        "only shows.",
    )

    @field_validator("pepper", "admin_token", mode="before")
    @classmethod
    def _unset(cls, value: Any) -> Any:
        """`{file: null, env: null}` is what a template holds before anything is filled in."""
        return None if isinstance(value, dict) and value and all(part is None for part in value.values()) else value


class PoolSettings(Strict):
    """Backends that serve one model revision."""

    name: Name = Field(description="What policies call it; letters, digits and inner `.`, `_`, `-`.")
    model: str = Field(min_length=1, max_length=256, description="The name the engines serve the model under.")
    revision: str = Field(
        default="1", min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+$", description="Which revision of the model this is."
    )
    dialect: Literal["vllm", "sglang", "trtllm", "tgi", "triton", "dynamo", "llamacpp", "openai"] = Field(
        default="vllm", description="How the engines speak; for other OpenAI-compatible servers `openai`."
    )
    api_key: SecretReference | None = Field(
        default=None, description="The key the engines ask for, if they do: {file: path} or {env: NAME}."
    )
    loras: list[LoraSettings] = Field(default=[], max_length=1000, description="Adapters of the model that policies may give to tenants.")
    max_loras: int = Field(
        default=1, ge=1, le=1000, description="Adapters each engine holds at once, those it was started with included; see docs/lora.md."
    )
    backends: list[BackendSettings] = Field(
        default=[], max_length=1000, description="The engines. An empty list is filled by `discover`, or over the admin port."
    )
    discover: DiscoverSettings | None = Field(default=None, description="Where further engines are found: {file: …} or {dns: …}.")

    @model_validator(mode="after")
    def _filled(self) -> "PoolSettings":
        if "backends" not in self.model_fields_set and self.discover is None:
            raise ValueError("has no backends; list them, or write discover, or backends: [] to fill it over the admin port")
        return self


class EngineSettings(Strict):
    """Patience and connections towards engines."""

    client: Literal["relay", "aiohttp"] = Field(
        default="relay", description="The HTTP client towards engines; `aiohttp` needs the extra of that name."
    )
    connect_timeout_s: Seconds = Field(default=2.0, description="Longest wait for a connection to an engine.")
    first_token_base_s: Seconds = Field(default=10.0, description="First-token deadline: this, plus prompt tokens over the rate below.")
    first_token_tokens_per_s: float = Field(
        default=2000.0, gt=0, le=1e9, description="Prefill rate the deadline assumes; an engine measured to be slower is given its own."
    )
    first_token_cap_s: Seconds = Field(default=120.0, description="Longest first-token deadline; not below the base.")
    token_gap_s: Seconds = Field(default=30.0, description="Longest silence between two events of a stream.")
    plain_timeout_s: Seconds = Field(default=600.0, description="Longest wait for a plain reply.")
    heartbeat_s: float = Field(default=5.0, ge=0, le=3600, description="SSE comment to the caller after this much silence; 0 for none.")
    idle_connection_s: Seconds = Field(
        default=4.0, description="Age at which an idle connection is not used again; below the engine's own keep-alive (vLLM, SGLang: 5 s)."
    )
    max_connections_per_backend: int = Field(
        default=1024,
        ge=1,
        le=65_535,
        description="Open connections to one backend, per worker; more requests than this are refused or go elsewhere.",
    )
    lora_load_s: Seconds = Field(default=30.0, description="Longest wait for an adapter to be loaded before its request is sent.")
    poll_s: Seconds = Field(default=1.0, description="How often each engine is asked whether it is there.")
    register_networks: Annotated[list[str], AfterValidator(checked_networks)] = Field(
        default=["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
        max_length=100,
        description="Networks that backends from DNS or the admin port may be in. Link-local and cloud-metadata addresses never are.",
    )
    signals_s: Seconds = Field(default=0.1, description="How often each engine is asked for its load; every worker asks.")


class DrainSettings(Strict):
    """How a worker ends on SIGTERM, and a backend that leaves."""

    accept_s: float = Field(default=5.0, ge=0, le=600, description="How long new connections are still taken while load balancers notice.")
    grace_s: float = Field(default=120.0, ge=0, le=86_400, description="How long running requests may go on; then they get an error event.")


class LogSettings(Strict):
    """What is written."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level of the process's log (stderr).")
    access: bool = Field(default=True, description="One JSON line per request (stdout).")


class Settings(Strict):
    """The whole of tidegate.yaml."""

    data: DataSettings = Field(default=DataSettings(), description="The data port.")
    admin: AdminSettings = Field(default=AdminSettings(), description="The admin port.")
    workers: int = Field(default=1, ge=1, le=64, description="Worker processes of the data port; one per core at most.")
    stores: StoreSettings = Field(default=StoreSettings(), description="State, by URL.")
    secrets: SecretSettings = Field(default=SecretSettings(), description="Secrets, by reference.")
    policies: File = Field(default="policies", description="Folder of policy files, relative to the settings file.")
    pools: list[PoolSettings] = Field(min_length=1, max_length=1000, description="The fleet.")
    engines: EngineSettings = Field(default=EngineSettings(), description="Towards engines.")
    drain: DrainSettings = Field(default=DrainSettings(), description="Ending.")
    log: LogSettings = Field(default=LogSettings(), description="Logs.")

    _base_dir: Path = Path()

    @property
    def base_dir(self) -> Path:
        """The settings file's folder, absolute; relative paths start there."""
        return self._base_dir

    @property
    def policies_dir(self) -> Path:
        """The policy folder."""
        return self._base_dir / self.policies

    @property
    def policy_targets(self) -> tuple[list[str], dict[str, list[str]]]:
        """What policies may name: the pools, and the adapters of each."""
        return [pool.name for pool in self.pools], {pool.name: [lora.name for lora in pool.loras] for pool in self.pools}

    @property
    def sql_url(self) -> str:
        """The SQL store's URL with a SQLite file's path made absolute."""
        url = self.stores.sql
        file = sqlite_file(url)
        return f"sqlite:///{(self._base_dir / file).resolve()}" if file else url

    def based_at(self, folder: Path) -> "Settings":
        """The same settings, read from a file in `folder` (absolute)."""
        tls = self.data.tls
        if tls is not None:
            tls = Tls(certificate=str(folder / tls.certificate), private_key=str(folder / tls.private_key))
        out = self.model_copy(update={"data": self.data.model_copy(update={"tls": tls})})
        out._base_dir = folder
        return out
