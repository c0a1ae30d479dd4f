"""The URL of the counter store, taken apart. Pure: nothing is resolved and nothing connected to.

    memory://                                       in this process
    valkey+embedded://                              a Valkey of the gateway's own; valkey+embedded:///folder says where its files lie
    redis://[user:password@]host[:port][/db]        one server; rediss:// with TLS
    unix:///path/to/socket[?db=N]                   one server on this machine
    redis+sentinel://[user:password@]h1[:port],h2/service[/db]     the primary that these Sentinels name
    redis+cluster://[user:password@]h1[:port],h2    a cluster, found from any of these nodes

`rediss+sentinel://` and `rediss+cluster://` are the last two with TLS. `valkey://` and `valkeys://` mean `redis://` and `rediss://`.
Passwords may be percent-encoded.
"""

import re
from enum import Enum
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

DEFAULT_PORT: Final = 6379
SENTINEL_PORT: Final = 26_379
MAX_DB: Final = 1_000_000
MAX_HOSTS: Final = 64
SCHEMES: Final = "memory://, valkey+embedded://, redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""The names of this host. No other address of 127.0.0.0/8 is among them, so that a tunnel to a store elsewhere can have one."""

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253}))(?::([0-9]{1,5}))?")
_SERVICE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class StoreKind(Enum):
    """The kind of store that a URL names."""

    MEMORY = "memory"
    EMBEDDED = "embedded"
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a server listens: host and port, or the path of a unix socket with port 0."""

    host: str
    port: int

    @property
    def on_this_host(self) -> bool:
        """Whether the server runs on the gateway's own host: behind a socket file, or under one of the names in `LOOPBACK`."""
        return not self.port or self.host.lower() in LOOPBACK

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CounterUrl(msgspec.Struct, frozen=True):
    """A counter store's URL as values."""

    kind: StoreKind
    addresses: tuple[Address, ...] = ()
    """Addresses of the server, of the Sentinels, or of some nodes of the cluster."""
    folder: str = ""
    """Folder of an embedded store's files; empty for the one that the gateway picks."""
    service: str = ""
    """The name by which the Sentinels know the primary."""
    db: int = 0
    username: str = ""
    password: str = ""
    tls: bool = False

    def shown(self) -> str:
        """The store in words, without credentials, for operators and logs."""
        where = ",".join(map(str, self.addresses))
        if self.kind is StoreKind.MEMORY:
            return "in this process"
        if self.kind is StoreKind.EMBEDDED:
            return f"embedded Valkey, files in {self.folder}" if self.folder else "embedded Valkey"
        return f"{self.kind.value} {where}, service {self.service}" if self.service else f"{self.kind.value} {where}"


def parse_counter_url(url: str) -> CounterUrl:
    """Take a URL apart.

    Raises:
        ValueError: the URL names no supported store; the message says what to write and never repeats the URL, which may hold a
            password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"is no URL; write {SCHEMES}")
    if scheme == "memory":
        if rest:
            raise ValueError("has something behind memory://; write just memory://")
        return CounterUrl(StoreKind.MEMORY)
    if scheme == "valkey+embedded":
        if rest and (not rest.startswith("/") or len(rest) < 2 or not rest.isprintable() or "?" in rest):
            raise ValueError("names no folder; write valkey+embedded:// or valkey+embedded:///folder")
        return CounterUrl(StoreKind.EMBEDDED, folder=rest[1:])
    plain = scheme.replace("valkey", "redis", 1)
    tls = plain.startswith("rediss")
    plain = plain.replace("rediss", "redis", 1) if tls else plain
    if plain == "unix":
        return _unix(url)
    if plain not in ("redis", "redis+sentinel", "redis+cluster"):
        raise ValueError(f"names a store that is not supported; write {SCHEMES}")
    return _network(plain, tls, rest)


def _unix(url: str) -> CounterUrl:
    parts = urlsplit(url)
    if parts.netloc or len(parts.path) < 2 or parts.fragment:
        raise ValueError("names no socket; write unix:///path/to/socket")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    db = options.pop("db", "0")
    if options:
        raise ValueError("has unknown options; only ?db=N may follow the socket's path")
    return CounterUrl(StoreKind.SINGLE, (Address(unquote(parts.path), 0),), db=_db(db))


def _network(scheme: str, tls: bool, rest: str) -> CounterUrl:
    place, _, path = rest.partition("/")
    credentials, at, hosts = place.rpartition("@")
    username, colon, password = credentials.partition(":")
    if at and not colon:
        raise ValueError("has a user without a password; write user:${PASSWORD}@host")
    if any(mark in path for mark in "?#") or any(mark in hosts for mark in "?#"):
        raise ValueError("has options; it takes none")
    kind = {"redis": StoreKind.SINGLE, "redis+sentinel": StoreKind.SENTINEL, "redis+cluster": StoreKind.CLUSTER}[scheme]
    default = SENTINEL_PORT if kind is StoreKind.SENTINEL else DEFAULT_PORT
    addresses = tuple(_address(host, default) for host in hosts.split(","))
    if len(addresses) > (1 if kind is StoreKind.SINGLE else MAX_HOSTS):
        hint = "redis:// takes one host; for several write redis+sentinel:// or redis+cluster://"
        raise ValueError(f"names several hosts; {hint}" if kind is StoreKind.SINGLE else f"names more than {MAX_HOSTS} hosts")
    service = ""
    if kind is StoreKind.SENTINEL:
        service, _, path = path.partition("/")
        if not _SERVICE.fullmatch(service):
            raise ValueError("names no service; write redis+sentinel://host1,host2/service, as the Sentinels call the primary")
    if kind is StoreKind.CLUSTER and path:
        raise ValueError("names a database, and a cluster has only one; end it after the hosts")
    return CounterUrl(
        kind, addresses, service=service, db=_db(path or "0"), username=unquote(username), password=unquote(password), tls=tls
    )


def _address(text: str, default: int) -> Address:
    matched = _HOST.fullmatch(text)
    port = int(matched[3]) if matched and matched[3] else default
    if matched is None or not 0 < port <= 65_535:
        raise ValueError("has no usable host or port; write for instance redis://valkey.internal:6379")
    return Address(matched[1] or matched[2], port)


def _db(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > MAX_DB:
        raise ValueError("has no usable database number; write for instance redis://host:6379/0")
    return int(text)
