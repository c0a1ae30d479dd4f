"""`tidegate.yaml` as a strict model: the only place where the process's configuration is read.

What is contradictory does not load. Secrets stand here as references only; `gateway/secrets.py` reads them.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, StringConstraints, field_validator, model_validator
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from domain.strict import Strict
from policies.located_yaml import ConfigError, Problem, read_yaml, validated

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$")]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Port = Annotated[int, Field(ge=0, le=65_535)]

METADATA_NETWORKS: Final = tuple(map(ipaddress.ip_network, ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128")))
"""Where clouds serve machine credentials; no engine lives there, so an address in it is a mistake or an attack."""


def split_address(bind: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`.

    Raises:
        ValueError: it is neither.
    """
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([A-Za-z0-9.-]+)):(\d{1,5})", bind)
    if found is None or int(found[3]) > 65_535:
        raise ValueError("must be host:port, for instance 127.0.0.1:8080 or [::1]:8080")
    return found[1] or found[2], int(found[3])


def _port_ok(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class SecretReference(Strict):
    """Where a secret lies: exactly one of the two."""

    file: str | None = Field(default=None, description="A file that holds it, relative to the settings file.")
    env: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="An environment variable that holds it.")

    @model_validator(mode="after")
    def _one(self) -> "SecretReference":
        if (self.file is None) == (self.env is None):
            raise ValueError("write either {file: path} or {env: NAME}")
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
        """Host and port."""
        return split_address(self.bind)


class Tls(Strict):
    """TLS on the data port."""

    certificate: str = Field(description="PEM file with the certificate chain, relative to the settings file.")
    private_key: str = Field(description="PEM file with the key.")


class LimitSettings(Strict):
    """What one caller's connection may do; `gateway/http/edge/limits.py` gives the reasons."""

    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, le=1024**3, description="Largest request body.")
    max_header_bytes: int = Field(default=16 * 1024, ge=1024, le=1024**2, description="Largest request head.")
    max_headers: int = Field(default=64, ge=8, le=1000, description="Header lines of one request.")
    max_connections: int = Field(default=20_000, ge=1, le=1_000_000, description="Connections per worker.")
    header_timeout_s: Seconds = Field(default=10.0, description="From a request's first byte to the end of its head.")
    body_timeout_s: Seconds = Field(default=30.0, description="From the end of the head to the end of the body.")
    min_body_rate_bytes_per_s: int = Field(default=1024, ge=0, description="Average a body must keep after its first 5 s.")
    keepalive_s: Seconds = Field(default=75.0, description="How long a connection may be idle between requests.")
    reply_buffer_bytes: int = Field(default=256 * 1024, ge=4096, le=64 * 1024**2, description="Unsent reply bytes at which the engine is paused.")
    slow_reader_s: Seconds = Field(default=30.0, description="How long a reply may stay paused before its caller is cut off.")


class DataSettings(Bound):
    """The data port: inference only."""

    bind: str = Field(default="127.0.0.1:8080", description="Address and port of the data port; port 0 picks a free one.")
    tls: Tls | None = Field(default=None, description="TLS; without it, plain HTTP.")
    cors_origins: list[str] = Field(default=[], description='Origins whose pages may call, exact; ["*"] for any.')
    hosts: list[str] = Field(default=[], description="Host header values served (with the port, where callers send one); empty for any.")
    limits: LimitSettings = Field(default=LimitSettings(), description="Bounds of callers' connections.")


class AdminSettings(Bound):
    """The admin port: probes, metrics, version."""

    bind: str = Field(default="127.0.0.1:8081", description="Address and port of the admin port; keep it away from callers.")


class StoreSettings(Strict):
    """Where state lies, by URL."""

    sql: str = Field(default="sqlite:///tidegate.db", description="Tenants and keys: `sqlite:///file` (relative to the settings file) or `postgresql://…`.")

    @field_validator("sql")
    @classmethod
    def _known(cls, url: str) -> str:
        try:
            parsed = make_url(url)
        except ArgumentError:
            raise ValueError("is no database URL; write sqlite:///file.db or postgresql://user@host/database") from None
        if parsed.drivername not in ("sqlite", "postgresql"):
            raise ValueError(f"{parsed.drivername!r} is not supported; use sqlite:/// or postgresql://")
        return url


class SecretSettings(Strict):
    """Secrets, by reference."""

    pepper: SecretReference | None = Field(
        default=None, description="What key digests are keyed with. Default with SQLite: `tidegate.pepper` beside the database, made on first use."
    )


class BackendSettings(Strict):
    """One engine endpoint; one data-parallel rank counts as one."""

    id: Name = Field(description="Its name in metrics, logs and headers; unique in the whole fleet.")
    url: str = Field(description="Where it listens: http(s)://host[:port][/prefix].")

    @field_validator("url")
    @classmethod
    def _safe(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be http://host:port or https://host:port")
        if parts.username or parts.password:
            raise ValueError("must not hold credentials; write the pool's api_key as {file: …} or {env: …}")
        if parts.query or parts.fragment:
            raise ValueError("must not have a query or a fragment")
        if not _port_ok(url):
            raise ValueError("has no usable port")
        try:
            address = ipaddress.ip_address(parts.hostname)
        except ValueError:
            return url
        if any(address in network for network in METADATA_NETWORKS):
            raise ValueError("is a link-local or cloud-metadata address; no engine lives there")
        return url


class PoolSettings(Strict):
    """Backends that serve one model revision."""

    name: Name = Field(description="What policies call it.")
    model: str = Field(min_length=1, max_length=256, description="The name the engines serve the model under.")
    revision: str = Field(default="1", min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+$", description="Which revision of the model this is.")
    dialect: Literal["vllm", "sglang", "llamacpp", "openai"] = Field(default="vllm", description="How the engines speak.")
    api_key: SecretReference | None = Field(default=None, description="The engines' own API key.")
    backends: list[BackendSettings] = Field(min_length=1, max_length=1000, description="The engines.")


class EngineSettings(Strict):
    """Patience and connections towards engines."""

    client: Literal["relay", "aiohttp"] = Field(default="relay", description="The HTTP client towards engines; `aiohttp` needs the extra of that name.")
    connect_timeout_s: Seconds = Field(default=2.0, description="For one connection.")
    first_token_base_s: Seconds = Field(default=10.0, description="First-token deadline: this, plus prompt tokens over the rate below.")
    first_token_tokens_per_s: float = Field(default=2000.0, gt=0, description="Prefill rate the deadline assumes.")
    first_token_cap_s: Seconds = Field(default=120.0, description="Longest first-token deadline.")
    token_gap_s: Seconds = Field(default=30.0, description="Longest silence between two events of a stream.")
    plain_timeout_s: Seconds = Field(default=600.0, description="Longest wait for a plain reply.")
    heartbeat_s: float = Field(default=15.0, ge=0, le=3600, description="SSE comment to the caller after this much silence; 0 for none.")
    idle_connection_s: Seconds = Field(default=4.0, description="Age at which an idle connection is not used again; below the engine's own keep-alive (vLLM, SGLang: 5 s).")
    max_connections_per_backend: int = Field(default=1024, ge=1, le=65_535, description="Per worker.")
    poll_s: Seconds = Field(default=1.0, description="How often each engine is asked whether it is there.")


class DrainSettings(Strict):
    """How a worker ends on SIGTERM."""

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
    policies: str = Field(default="policies", description="Folder of policy files, relative to the settings file.")
    pools: list[PoolSettings] = Field(min_length=1, max_length=1000, description="The fleet.")
    engines: EngineSettings = Field(default=EngineSettings(), description="Towards engines.")
    drain: DrainSettings = Field(default=DrainSettings(), description="Ending.")
    log: LogSettings = Field(default=LogSettings(), description="Logs.")

    _base_dir: Path = Path()

    @property
    def base_dir(self) -> Path:
        """The settings file's folder; relative paths start there."""
        return self._base_dir

    @property
    def policies_dir(self) -> Path:
        """The policy folder."""
        return self._base_dir / self.policies

    @property
    def sql_url(self) -> str:
        """The SQL store's URL with a SQLite file's path made absolute."""
        url = make_url(self.stores.sql)
        if url.drivername != "sqlite" or not url.database:
            return self.stores.sql
        return url.set(database=str((self._base_dir / url.database).resolve())).render_as_string(hide_password=False)


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check a settings file.

    Raises:
        ConfigError: every mistake found, with file, line and key.
    """
    located = read_yaml(path, os.environ if environ is None else environ)
    settings = validated(Settings, located)
    settings.__pydantic_private__ = {"_base_dir": path.resolve().parent}
    problems = [located.problem(at, message) for at, message in _contradictions(settings)]
    if problems:
        raise ConfigError(problems)
    return settings


def _contradictions(settings: Settings) -> list[tuple[tuple[str | int, ...], str]]:
    """What no single field can see."""
    found: list[tuple[tuple[str | int, ...], str]] = []
    base, data = settings.base_dir, settings.data
    if data.bind == settings.admin.bind and data.bind_address[1]:
        found.append((("admin", "bind"), f"is the data port's address {data.bind}; the two never share a socket"))
    if not settings.policies_dir.is_dir():
        found.append((("policies",), f"there is no folder {settings.policies!r} beside the settings file; create it with one policy"))
    if data.tls is not None:
        for key, file in (("certificate", data.tls.certificate), ("private_key", data.tls.private_key)):
            if not (base / file).is_file():
                found.append((("data", "tls", key), f"there is no file {file!r}"))
    url = make_url(settings.sql_url)
    if url.drivername == "sqlite" and not (url.database and Path(url.database).parent.is_dir()):
        found.append((("stores", "sql"), "the database's folder does not exist; create it, or name another file"))
    names: set[str] = set()
    ids: set[str] = set()
    for i, pool in enumerate(settings.pools):
        if pool.name in names:
            found.append((("pools", i, "name"), f"{pool.name!r} is the name of another pool; names are unique"))
        names.add(pool.name)
        for j, backend in enumerate(pool.backends):
            if backend.id in ids:
                found.append((("pools", i, "backends", j, "id"), f"{backend.id!r} is another backend's id; ids are unique in the fleet"))
            ids.add(backend.id)
    return found


__all__ = ["ConfigError", "PoolSettings", "Problem", "SecretReference", "Settings", "load_settings", "split_address"]
