"""`tidegate.yaml` as a strict model: every field, its bounds, default and meaning; docs/reference/configuration.md is made from it.

`Settings` is the whole file. Each section is a class: `EngineSettings`, `DrainSettings`, `LogSettings`, `QueueSettings` (requests that wait
for capacity on an engine), `RoutingSettings` (what holds for all tenants; policy files say how backends are chosen), `RolloutSettings`,
`TenantSettings`, `LedgerSettings` and `StoreSettings`. Modules beside this one have the data and admin port (`listeners.py`), pools
(`pools.py`), the answer cache (`cache.py`), files and batches (`files.py`), ratings and the judge (`judge.py`), the request log
(`request_log.py`), detectors of guard rules (`guards.py`), metrics (`metrics.py`), traces (`traces.py`), issuers of JWTs (`auth.py`) and
checks across fields (`checks.py`).

Secrets appear here as references only. The model reads no file and no environment, and imports no component that it configures; numbers
carry their unit in the name.

Size: the sections of one file, a line or two for each field.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from pydantic import AfterValidator, Field, StringConstraints, field_validator

from domain.priority import CLASSES, Class
from domain.strict import Strict
from gateway.config.addresses import checked_docs_url, checked_hook_url, sqlite_file
from gateway.config.auth import AuthSettings
from gateway.config.cache import CacheSettings
from gateway.config.files import BatchSettings, FileSettings
from gateway.config.guards import GuardSettings
from gateway.config.judge import FeedbackSettings, JudgeSettings
from gateway.config.listeners import AdminSettings, DataSettings, Seconds, Tls
from gateway.config.metrics import ConsoleSettings, MetricsSettings
from gateway.config.picker import PickerSettings
from gateway.config.pools import PoolSettings, Region, checked_networks
from gateway.config.request_log import RequestLogSettings
from gateway.config.secrets import File, SecretReference, SecretSettings
from gateway.config.traces import TraceSettings
from gateway.placement.pool_state import DEFAULT_INDEX_BLOCKS
from gateway.placement.shared_dispatches import MAX_BYTES_PER_S
from routing.fair_queue import QueueBounds
from tenancy.accounts import DirectoryBounds
from tenancy.counter_url import CounterUrl, StoreKind, parse_counter_url
from tenancy.limits import MOST_LABELS

USUAL_QUEUE: Final = QueueBounds()


class QueueSettings(Strict):
    """Bounds of each pool's queue in each worker. Requests beyond them are refused at once; the tenant's policy bounds the wait."""

    max_requests: int = Field(
        default=USUAL_QUEUE.count,
        ge=0,
        le=1_000_000,
        description="Requests that may wait in the queue; 0 refuses every request that cannot be sent at once.",
    )
    max_bytes: int = Field(
        default=USUAL_QUEUE.size_bytes, ge=0, le=2**40, description="Bytes of the bodies of all waiting requests together."
    )
    max_requests_per_tenant: int = Field(
        default=USUAL_QUEUE.tenant_count, ge=1, le=1_000_000, description="Requests of one tenant that may wait in the queue."
    )
    max_bytes_per_tenant: int = Field(
        default=USUAL_QUEUE.tenant_bytes, ge=1024, le=2**40, description="Bytes of the bodies of one tenant's waiting requests."
    )

    preempt: Literal["none", "default", "batch"] = Field(
        default="none",
        description="The highest priority class whose requests may be preempted, before their first token, for a waiting request of a "
        "higher class; `none` turns preemption off.",
    )

    @property
    def gives_way(self) -> Class | None:
        """The highest priority class whose requests may be preempted; None where preemption is off."""
        return CLASSES.get(self.preempt)

    @property
    def bounds(self) -> QueueBounds:
        """The bounds as the queue takes them."""
        return QueueBounds(self.max_requests, self.max_bytes, self.max_requests_per_tenant, self.max_bytes_per_tenant)


class RoutingSettings(Strict):
    """Routing settings of every worker."""

    region: Region = Field(
        default="",
        description="Region or zone of this gateway and of its callers: the policies `predicted_latency` (`crossing_s`) and `weighted` "
        "(`region`) may prefer backends there.",
    )
    index_blocks: int = Field(
        default=DEFAULT_INDEX_BLOCKS,
        ge=1024,
        le=100_000_000,
        description="Size of each worker's prefix index over all backends, in blocks of 64 prompt tokens; about 100 bytes a block. "
        "Beyond it, the least recently used blocks are forgotten.",
    )
    index_file: File | None = Field(
        default="tidegate-index",
        description="File, relative to the settings file, in which a gateway leaves what it assumes of engines' caches, when it ends and "
        "every `index_every_s`, for a start within 15 minutes; null for none.",
    )
    index_every_s: float = Field(
        default=300.0,
        ge=1,
        le=900,
        description="Seconds between two copies into `index_file`, for a gateway that is killed; none while no request came. They are made "
        "in slices between requests.",
    )
    share_dispatches: bool = Field(
        default=True,
        description="Whether workers tell each other which prompts they send where (as keyed hashes), for engines whose KV "
        "events do not tell it.",
    )
    share_between_hosts: bool = Field(
        default=True,
        description="Whether gateways that share a counter store tell each other over it (pub/sub) what their workers tell each other on a "
        "host: their load on each backend, and their prompts where `share_dispatches` is on.",
    )
    share_bytes_per_s: int = Field(
        default=MAX_BYTES_PER_S,
        ge=4096,
        le=100_000_000,
        description="Most bytes a second that a worker tells each of the others, 8 for a block of 64 tokens; what is beyond is not told.",
    )


DocsUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_docs_url)]
HookUrl = Annotated[str, StringConstraints(max_length=2048), AfterValidator(checked_hook_url)]


class WebhookSettings(Strict):
    """The receiver of messages about changes, and the secret that signs them."""

    url: HookUrl = Field(description="URL that receives the messages as JSON objects (POST): http(s)://host[:port]/path.")
    secret: SecretReference = Field(description="Key of the signature on every message (HMAC-SHA256); at least 24 characters.")


class RolloutSettings(Strict):
    """Rollouts themselves are started over the admin API (docs/reference/rollouts.md)."""

    webhook: WebhookSettings | None = Field(
        default=None, description="The receiver of a message about every change of a rollout; null for none."
    )


AlertedMeter = Literal["cost_usd", "tokens", "input_tokens", "output_tokens", "units", "requests", "audio_seconds", "audio_bytes"]


class AlertSettings(Strict):
    """Messages about budgets that are nearly spent; see docs/tasks/get-told-before-a-budget-is-spent.md."""

    webhook: WebhookSettings | None = Field(
        default=None, description="The receiver of a message about every percentage of a budget that is reached; null for none."
    )
    at_percent: list[Annotated[int, Field(ge=1, le=1000)]] = Field(
        default=[50, 80, 100],
        min_length=1,
        max_length=10,
        description="Percentages of a limit's amount that are told. More than 100 is "
        "reached where an amount was lowered below its usage or was overshot (docs/reference/limits.md).",
    )
    meters: list[AlertedMeter] = Field(
        default=["cost_usd"],
        min_length=1,
        description="The meters whose limits are told, of those per day, month or longer; limits per minute and of single end users never.",
    )
    look_every_s: float = Field(default=30.0, ge=1, le=3600, description="Seconds between two looks at the limits.")


class TenantSettings(Strict):
    """Bounds of every tenant. Existing keys and projects stay when a bound is lowered."""

    max_keys: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Keys of one tenant that are not revoked; a further key is refused (409). The same number of revoked keys is "
        "remembered.",
    )
    max_projects: int = Field(default=1_000, ge=1, le=100_000, description="Projects of one tenant; a further one is refused (409).")

    def bounds(self) -> DirectoryBounds:
        """The bounds as the directory takes them."""
        return DirectoryBounds(self.max_keys, self.max_projects)


class LedgerSettings(Strict):
    """The ledger: usage of every admitted request; docs/explanation/ledger.md says how it gets to SQL."""

    enabled: bool = Field(default=True, description="Whether usage is recorded at all.")
    folder: Annotated[str, StringConstraints(min_length=1, max_length=4096)] = Field(
        default="tidegate-ledger",
        description="Folder of the write-ahead log, relative to the settings file; on a disk of this host that outlives the process.",
    )
    fsync_ms: int = Field(
        default=50,
        ge=1,
        le=1000,
        description="Longest time until recorded usage is durable: the usage that a crash can lose. In milliseconds.",
    )
    max_bytes: int = Field(
        default=1024**3,
        ge=16 * 1024**2,
        le=1024**4,
        description="Largest backlog on disk while SQL is unavailable; about 4,000 requests per MiB.",
    )
    retention_days: int = Field(
        default=400, ge=2, le=36_500, description="Days for which single requests are kept; daily totals are not deleted."
    )


class ExplanationSettings(Strict):
    """Routing decisions on disk, so that `tidegate explain` finds them after load and restarts."""

    folder: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = Field(
        default="tidegate-explanations",
        description="Folder of past routing decisions, relative to the settings file; null to keep only the last 1,000 of each worker, in "
        "memory.",
    )
    max_bytes: int = Field(
        default=256 * 1024**2,
        ge=4 * 1024**2,
        le=1024**4,
        description="Largest size of the folder; the oldest decisions are deleted first. About 5,000 requests per MiB.",
    )
    hours: float = Field(default=72, gt=0, le=8760, description="Hours for which decisions are kept, where the folder's size allows it.")


CURRENT_COPY: Final = "current"
"""Name of the newest version of the database's policies in the folder of their copies on this machine."""


def _check_database_url(url: str) -> None:
    # imported only here: the import takes 0.4 s, which `--help` with SQLite should not cost
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        driver = make_url(url).drivername
    except (ArgumentError, ValueError):
        raise ValueError("is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
    if driver != "postgresql":
        raise ValueError("names a database that is not supported; write sqlite:///file.db or postgresql://user@host/database")


class StoreSettings(Strict):
    """The stores of persistent state, by URL."""

    sql: str = Field(
        default="sqlite:///tidegate.db",
        description="Database of tenants and keys: `sqlite:///file` (relative to the settings file) or `postgresql://…`.",
    )
    counters: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Store of limits and their usage: `memory://`, `valkey+embedded://`, `redis://…`, `rediss://…`, `unix:///socket`, "
        "`redis+sentinel://h1,h2/service` or `redis+cluster://h1,h2`; see docs/reference/stores.md. Unset: `memory://` with one "
        "worker, `valkey+embedded://` with several.",
    )

    end_users_per_tenant: int = Field(
        default=MOST_LABELS,
        ge=1,
        le=1_000_000,
        description="End-user labels of a tenant that are counted separately, in limits per end user and in daily totals. Callers "
        "choose labels; usage under further labels is counted together, as `(other)`.",
    )

    directory_file: File = Field(
        default="tidegate.directory",
        description="File with the last known directory (tenants, keys, limits, prices), sealed, from which the gateway starts while "
        "the database is unavailable; relative to the settings file. On a disk that outlives the process.",
    )

    policies_copy: File = Field(
        default="tidegate.policies",
        description="Folder with copies of the database's policies (`policies_from`), for readers, and for starts while the database "
        "is unavailable; relative to the settings file. On a disk that outlives the process.",
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

    @field_validator("counters")
    @classmethod
    def _parses(cls, url: str | None) -> str | None:
        if url is not None:
            parse_counter_url(url)
        return url


class EngineSettings(Strict):
    """Timeouts and connections towards engines."""

    client: Literal["relay", "aiohttp"] = Field(
        default="relay", description="The HTTP client towards engines; `aiohttp` needs the extra of that name."
    )
    connect_timeout_s: Seconds = Field(default=2.0, description="Longest wait for a connection to an engine.")
    first_token_base_s: Seconds = Field(
        default=10.0, description="First-token deadline: this time, plus prompt tokens divided by `first_token_tokens_per_s`."
    )
    first_token_tokens_per_s: float = Field(
        default=2000.0,
        gt=0,
        le=1e9,
        description="Prefill rate that the first-token deadline assumes; for an engine that is measured to be slower, the measured "
        "rate counts.",
    )
    first_token_cap_s: Seconds = Field(default=120.0, description="Longest first-token deadline; not below `first_token_base_s`.")
    token_gap_s: Seconds = Field(default=30.0, description="Longest silence between two events of a stream.")
    plain_timeout_s: Seconds = Field(default=600.0, description="Longest wait for a reply that is not streamed.")
    heartbeat_s: float = Field(default=5.0, ge=0, le=3600, description="Silence after which the caller is sent an SSE comment; 0 for none.")
    idle_connection_s: Seconds = Field(
        default=4.0,
        description="Age at which an idle connection is not used again; it must be below the engine's own keep-alive (vLLM, SGLang: 5 s).",
    )
    max_connections_per_backend: int = Field(
        default=1024,
        ge=1,
        le=65_535,
        description="Open connections to one backend, per worker; further requests are refused or go to other backends.",
    )
    lora_load_s: Seconds = Field(default=30.0, description="Longest wait for an adapter to be loaded before its request is sent.")
    poll_s: Seconds = Field(
        default=1.0,
        description="Time between two health checks of each engine; four times as long for an engine that is well while nobody asks its "
        "pool.",
    )
    register_networks: Annotated[list[str], AfterValidator(checked_networks)] = Field(
        default=["127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"],
        max_length=100,
        description="Networks in which backends from DNS or the admin port may be. Link-local and cloud-metadata addresses are never "
        "allowed.",
    )
    signals_s: Seconds = Field(default=0.1, description="Time between two reads of each engine's load, while requests come.")


class DrainSettings(Strict):
    """Draining of a worker after SIGTERM, and of a backend that leaves."""

    accept_s: float = Field(
        default=5.0, ge=0, le=600, description="How long new connections are still accepted while load balancers notice the drain."
    )
    grace_s: float = Field(
        default=120.0, ge=0, le=86_400, description="How long running requests may continue; then they end with an error event."
    )


class LogSettings(Strict):
    """The process's log and the access log."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Lowest level of the process's log (stderr).")
    access: bool = Field(default=True, description="Whether to write the access log: one JSON line per request (stdout).")
    end_user: bool = Field(default=False, description="Whether the access log names the end users (`user`) that requests or tokens name.")
    prompt_chain: bool = Field(
        default=True,
        description="Whether the access log has, of each prompt that was read for routing, keyed hashes of its beginnings (at most 64, "
        "another key for each tenant) and of its conversation: with them `tidegate simulate` replays which prompts share what.",
    )


class Settings(Strict):
    """The whole of tidegate.yaml."""

    data: DataSettings = Field(default=DataSettings(), description="The data port.")
    admin: AdminSettings = Field(default=AdminSettings(), description="The admin port.")
    workers: int = Field(default=1, ge=1, le=64, description="Worker processes of the data port; one per core at most.")
    stores: StoreSettings = Field(default=StoreSettings(), description="The stores of persistent state, by URL.")
    secrets: SecretSettings = Field(default=SecretSettings(), description="Secrets, by reference.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Authentication by tokens of identity providers, besides API keys.")
    policies: File = Field(default="policies", description="Folder of policy files, relative to the settings file.")
    policies_from: Literal["files", "database"] = Field(
        default="files",
        description="Source of the policies: `files`, the folder `policies`; `database`, the SQL store, where `tidegate policy apply` "
        "puts them. With `database`, the first start copies the folder into an empty database.",
    )
    prompts: File = Field(default="prompts", description="Folder of prompts, relative to the settings file; it may be missing.")
    pools: list[PoolSettings] = Field(min_length=1, max_length=1000, description="The pools of engines: the fleet.")
    engines: EngineSettings = Field(default=EngineSettings(), description="Timeouts and connections towards engines.")
    routing: RoutingSettings = Field(default=RoutingSettings(), description="Settings of routing for all tenants.")
    queue: QueueSettings = Field(default=QueueSettings(), description="The queue of requests that wait for capacity on an engine.")
    drain: DrainSettings = Field(default=DrainSettings(), description="Draining of a worker or a backend.")
    rollouts: RolloutSettings = Field(default=RolloutSettings(), description="Rollouts.")
    alerts: AlertSettings = Field(default=AlertSettings(), description="Messages about budgets that are nearly spent.")
    tenants: TenantSettings = Field(default=TenantSettings(), description="Bounds of every tenant.")
    ledger: LedgerSettings = Field(default=LedgerSettings(), description="The ledger of usage.")
    cache: CacheSettings = Field(default=CacheSettings(), description="Where answers are kept that policies cache.")
    files: FileSettings = Field(default=FileSettings(), description="Files that callers store here.")
    batches: BatchSettings = Field(default=BatchSettings(), description="Batches: requests in a file, sent when there is room.")
    feedback: FeedbackSettings = Field(default=FeedbackSettings(), description="Ratings of answers by callers.")
    judge: JudgeSettings | None = Field(default=None, description="The model that scores answers; null for none.")
    guards: GuardSettings = Field(default=GuardSettings(), description="The detectors that guard rules of policies may ask.")
    explanations: ExplanationSettings = Field(default=ExplanationSettings(), description="Routing decisions that are kept on disk.")
    request_log: RequestLogSettings = Field(
        default=RequestLogSettings(), description="Finished requests that are kept, to be listed and shown."
    )
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="Metrics that cost something.")
    console: ConsoleSettings = Field(default=ConsoleSettings(), description="Where the console's page Charts reads from.")
    log: LogSettings = Field(default=LogSettings(), description="The process's log and the access log.")
    traces: TraceSettings | None = Field(default=None, description="Traces of requests, sent to OTLP receivers; null for none.")
    picker: PickerSettings | None = Field(
        default=None, description="The endpoint picker, which proxies ask over Envoy's ext_proc where a request is to go; null for none."
    )
    docs_url: DocsUrl | None = Field(
        default=None,
        description="Address of these pages: messages that name a page name it below this address. Null: the pages installed beside the "
        "program, where there are any.",
    )

    _base_dir: Path = Path()

    @property
    def public_docs(self) -> str:
        """The address that pages in answers are below; empty where the settings have none."""
        return f"{self.docs_url.rstrip('/')}/" if self.docs_url else ""

    @property
    def base_dir(self) -> Path:
        """The settings file's folder, absolute; relative paths start there."""
        return self._base_dir

    @property
    def policies_dir(self) -> Path:
        """The policy folder that workers read: for policies of the database, the newest copy on this machine."""
        return self.policies_copy / CURRENT_COPY if self.policies_from == "database" else self.policies_folder

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
    def explanations_dir(self) -> Path | None:
        """The folder of past routing decisions; None to keep none on disk."""
        folder = self.explanations.folder
        return self._base_dir / folder if folder is not None else None

    @property
    def policy_targets(self) -> tuple[list[str], dict[str, list[str] | None]]:
        """The names that policies may refer to: the pools, and the adapters of each; None where adapters may be registered at any time."""
        names = {pool.name: None if pool.lora_folder is not None else [lora.name for lora in pool.loras] for pool in self.pools}
        return [pool.name for pool in self.pools], names

    @property
    def detector_names(self) -> frozenset[str]:
        """The detectors that guard rules of policies may ask."""
        return frozenset(self.guards.detectors)

    @property
    def sql_url(self) -> str:
        """The SQL store's URL with a SQLite file's path made absolute."""
        url = self.stores.sql
        file = sqlite_file(url)
        return f"sqlite:///{(self._base_dir / file).resolve()}" if file else url

    @property
    def request_log_url(self) -> str:
        """The store of the request log, with a SQLite file's path made absolute."""
        return self.request_log.store_url(self._base_dir, self.sql_url)

    @property
    def index_file(self) -> Path | None:
        """The file with the prefix index of the gateway before; None for none."""
        name = self.routing.index_file
        return self._base_dir / name if name is not None else None

    @property
    def tells_hosts(self) -> bool:
        """Whether this gateway and those of other hosts tell each other what they send: they share a store, and it is not switched off."""
        return self.routing.share_between_hosts and self.counter_url.kind in (StoreKind.SINGLE, StoreKind.SENTINEL, StoreKind.CLUSTER)

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
        """The settings as read from a file in `folder` (absolute), to which relative paths refer."""
        tls = self.data.tls
        if tls is not None:
            tls = Tls(certificate=str(folder / tls.certificate), private_key=str(folder / tls.private_key))
        out = self.model_copy(update={"data": self.data.model_copy(update={"tls": tls})})
        out._base_dir = folder
        return out
