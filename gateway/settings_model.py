"""`tidegate.yaml` as a strict model: every field, its bounds, default and meaning; docs/configuration.md is made from it.

Secrets appear here as references only. The model reads no file and no environment, and imports no component that it configures;
numbers carry their unit in the name.
"""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from pydantic import AfterValidator, Field, field_validator

from domain.strict import Strict
from gateway.addresses import checked_host_header, checked_origin, split_address, sqlite_file
from gateway.settings_auth import AuthSettings
from gateway.settings_discover import checked_networks
from gateway.settings_ledger import LedgerSettings
from gateway.settings_pool import PoolSettings
from gateway.settings_queue import QueueSettings
from gateway.settings_rollout import RolloutSettings
from gateway.settings_routing import RoutingSettings
from gateway.settings_secret import File, SecretSettings
from gateway.settings_stores import CURRENT, StoreSettings
from gateway.settings_tenants import TenantSettings
from tenancy.counter_url import CounterUrl, StoreKind, parse_counter_url

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Origin = Annotated[str, AfterValidator(checked_origin)]
HostHeader = Annotated[str, AfterValidator(checked_host_header)]


class Bound(Strict):
    """A listener."""

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
    """Bounds of one caller's connection; `gateway/http/edge/limits.py` gives the reasons."""

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
    reply_buffers_total_bytes: int = Field(
        default=512 * 1024**2,
        ge=1024**2,
        le=1024**4,
        description="Unsent reply bytes of a worker's slow readers together; beyond it those behind for longest are cut off.",
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


class EngineSettings(Strict):
    """Timeouts and connections towards engines."""

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
    """Draining of a worker after SIGTERM, and of a backend that leaves."""

    accept_s: float = Field(default=5.0, ge=0, le=600, description="How long new connections are still taken while load balancers notice.")
    grace_s: float = Field(default=120.0, ge=0, le=86_400, description="How long running requests may go on; then they get an error event.")


class LogSettings(Strict):
    """The process's log and the access log."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level of the process's log (stderr).")
    access: bool = Field(default=True, description="One JSON line per request (stdout).")


class Settings(Strict):
    """The whole of tidegate.yaml."""

    data: DataSettings = Field(default=DataSettings(), description="The data port.")
    admin: AdminSettings = Field(default=AdminSettings(), description="The admin port.")
    workers: int = Field(default=1, ge=1, le=64, description="Worker processes of the data port; one per core at most.")
    stores: StoreSettings = Field(default=StoreSettings(), description="State, by URL.")
    secrets: SecretSettings = Field(default=SecretSettings(), description="Secrets, by reference.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Tokens of identity providers, besides keys.")
    policies: File = Field(default="policies", description="Folder of policy files, relative to the settings file.")
    policies_from: Literal["files", "database"] = Field(
        default="files",
        description="Who owns the policies: `files`, that folder; `database`, the SQL store, where `tidegate policy apply` puts them. The "
        "folder is what the first start puts there then.",
    )
    prompts: File = Field(default="prompts", description="Folder of prompts, relative to the settings file; it need not be there.")
    pools: list[PoolSettings] = Field(min_length=1, max_length=1000, description="The fleet.")
    engines: EngineSettings = Field(default=EngineSettings(), description="Towards engines.")
    routing: RoutingSettings = Field(default=RoutingSettings(), description="What routing keeps in memory.")
    queue: QueueSettings = Field(default=QueueSettings(), description="Waiting for room on an engine.")
    drain: DrainSettings = Field(default=DrainSettings(), description="Ending.")
    rollouts: RolloutSettings = Field(default=RolloutSettings(), description="Rollouts.")
    tenants: TenantSettings = Field(default=TenantSettings(), description="Tenants.")
    ledger: LedgerSettings = Field(default=LedgerSettings(), description="Usage.")
    log: LogSettings = Field(default=LogSettings(), description="Logs.")

    _base_dir: Path = Path()

    @property
    def base_dir(self) -> Path:
        """The settings file's folder, absolute; relative paths start there."""
        return self._base_dir

    @property
    def policies_dir(self) -> Path:
        """The policy folder that workers read: for policies of the database, the newest copy on this machine."""
        return self.policies_copy / CURRENT if self.policies_from == "database" else self.policies_folder

    @property
    def policies_folder(self) -> Path:
        """The policy folder that the settings name."""
        return self._base_dir / self.policies

    @property
    def policies_copy(self) -> Path:
        """The folder with this machine's copies of the database's policies."""
        return self._base_dir / self.stores.policies_copy

    @property
    def prompts_dir(self) -> Path:
        """The folder of prompts, which need not exist."""
        return self._base_dir / self.prompts

    @property
    def ledger_dir(self) -> Path:
        """The folder of the write-ahead log."""
        return self._base_dir / self.ledger.folder

    @property
    def policy_targets(self) -> tuple[list[str], dict[str, list[str]]]:
        """The names that policies may refer to: the pools, and the adapters of each."""
        return [pool.name for pool in self.pools], {pool.name: [lora.name for lora in pool.loras] for pool in self.pools}

    @property
    def sql_url(self) -> str:
        """The SQL store's URL with a SQLite file's path made absolute."""
        url = self.stores.sql
        file = sqlite_file(url)
        return f"sqlite:///{(self._base_dir / file).resolve()}" if file else url

    @property
    def counter_url(self) -> CounterUrl:
        """The store of the counters of limits.

        An embedded store's folder is absolute. Where the URL names none, it lies beside the SQLite file, or else beside the settings
        file.
        """
        url = parse_counter_url(self.stores.counters or ("memory://" if self.workers == 1 else "valkey+embedded://"))
        if url.kind is not StoreKind.EMBEDDED:
            return url
        file = sqlite_file(self.stores.sql)
        beside = self._base_dir / file if file else self._base_dir / "settings"
        folder = self._base_dir / url.folder if url.folder else beside.parent / "tidegate-counters"
        return msgspec.structs.replace(url, folder=str(folder.resolve()))

    def based_at(self, folder: Path) -> "Settings":
        """The same settings, read from a file in `folder` (absolute)."""
        tls = self.data.tls
        if tls is not None:
            tls = Tls(certificate=str(folder / tls.certificate), private_key=str(folder / tls.private_key))
        out = self.model_copy(update={"data": self.data.model_copy(update={"tls": tls})})
        out._base_dir = folder
        return out
