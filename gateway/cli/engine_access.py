"""How commands of `tidegate engine` get in to an engine: its API key, the CAs that its certificate is held to, and a client certificate
where it demands one (mTLS).

They come from options, or from the settings of a pool (`--pool`), so that an engine is asked as the gateway asks it. `unanswered` says why
an engine gave no answer, and which of the options helps.
"""

import os
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer

from backends.dialects import DIALECTS
from backends.discovery import diagnose
from backends.fetch import FetchError
from backends.ports import Loss
from gateway.cli.groups import Options
from gateway.cli.printing import fail
from gateway.config.load import Settings, load_settings
from gateway.config.pools import PoolSettings
from gateway.config.secrets import SecretError, read_reference
from gateway.config.trust import CertificateError, TlsFiles, engine_context, validity_of, verify_for
from policies.yaml.located import ConfigError

PANEL: Final = "Access to the engine"

Kind = Annotated[
    str | None, typer.Option("--dialect", help=f"The kind of engine behind a URL: {', '.join(DIALECTS)}; default: the pool's, else vllm.")
]


class EngineAccess(msgspec.Struct, frozen=True):
    """What an engine is asked with."""

    key: str | None = None
    """The API key that it asks for."""
    context: ssl.SSLContext | None = None
    """TLS with CAs or a certificate of one's own; None for the system's CAs and no certificate."""
    shows: bool = False
    """Whether it shows a client certificate."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry the key."""
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    def verify(self, url: str) -> ssl.SSLContext | bool:
        """The `verify` argument of an httpx client that asks this URL alone."""
        return self.context if self.context is not None and url.startswith("https:") else verify_for(url)


class NamedPool(NamedTuple):
    """The pool of `--pool`, and the settings that it stands in."""

    pool: PoolSettings
    settings: Settings

    @property
    def files(self) -> TlsFiles:
        """The files of its TLS."""
        return TlsFiles(None, None, None) if self.pool.tls is None else TlsFiles.of(self.pool.tls, self.settings.base_dir)


@dataclass
class EngineAccessOptions(Options):
    """The options of commands that ask an engine."""

    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="PEM file with the CAs that its certificate is held to; default: the system's.", rich_help_panel=PANEL
        ),
    ] = None
    cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PEM chain of the client certificate to show (mTLS); needs --key.", rich_help_panel=PANEL),
    ] = None
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the private key of --cert, not encrypted.", rich_help_panel=PANEL)
    ] = None
    api_key_env: Annotated[
        str | None, typer.Option(metavar="VARIABLE", help="The variable that holds the key the engine asks for.", rich_help_panel=PANEL)
    ] = None
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="POOL", help="Ask as the gateway asks this pool of --config: its TLS files, API key and dialect.", rich_help_panel=PANEL
        ),
    ] = None

    @property
    def own(self) -> bool:
        """Whether anything but a pool was named."""
        return any(option is not None for option in (self.ca, self.cert, self.key, self.api_key_env))

    def named(self, config: Path) -> NamedPool | None:
        """The pool of `--pool`; ends the command where the settings lack it."""
        if self.pool is None:
            return None
        settings = settings_of(config)
        pool = next((pool for pool in settings.pools if pool.name == self.pool), None)
        if pool is None:
            there = ", ".join(pool.name for pool in settings.pools) or "no pool at all"
            fail(f"--pool {self.pool}: {config} has {there}", code=2)
        return NamedPool(pool, settings)

    def access(self, named: NamedPool | None, urls: Sequence[str]) -> EngineAccess:
        """What engines at these URLs are asked with: the options, and what the pool says where they say nothing. Ends the command with a
        sentence for files that cannot be used."""
        if (self.cert is None) != (self.key is None):
            there, missing = ("--key", "--cert") if self.cert is None else ("--cert", "--key")
            fail(f"{there} says half of a client certificate: name the other file with {missing}", code=2)
        files = TlsFiles(self.ca, self.cert, self.key)
        if files.named() and not any(url.startswith("https:") for url in urls):
            fail(f"--{_option(next(iter(files.named())))} is for TLS, and {urls[0]} is asked without; write https://", code=2)
        given = EngineAccess() if named is None else access_of(named.pool, named.settings)
        whole = files if named is None else files.over(named.files)
        try:
            tls = EngineAccess(None, _usable(whole, time.time()), whole.certificate is not None) if files.named() else given
        except CertificateError as error:
            fail(f"--{_option(error.key)}: {error}", code=2)
        return msgspec.structs.replace(tls, key=_key_of(self.api_key_env, os.environ) or given.key)


def lists(named: NamedPool | None, url: str) -> bool:
    """Whether the pool lists a backend there: what it shows its engines goes to no other server."""
    return named is not None and any(backend.url.rstrip("/") == url.rstrip("/") for backend in named.pool.backends)


def settings_of(config: Path) -> Settings:
    """The settings; ends the command for a file with mistakes."""
    try:
        return load_settings(config, os.environ)
    except ConfigError as error:
        fail(str(error))


def access_of(pool: PoolSettings, settings: Settings) -> EngineAccess:
    """What the gateway asks the engines of a pool with; ends the command for a secret or a certificate that cannot be used."""
    try:
        key = None if pool.api_key is None else read_reference(pool.api_key, settings.base_dir, os.environ)
        context = None if pool.tls is None else _usable(TlsFiles.of(pool.tls, settings.base_dir), time.time())
    except SecretError as error:
        fail(f"pool {pool.name}: {error}")
    return EngineAccess(key, context, pool.tls is not None and pool.tls.certificate is not None)


def kind_of(dialect: str | None, named: NamedPool | None) -> str:
    """The dialect to speak; ends the command for one that there is not."""
    kind = dialect or ("vllm" if named is None else named.pool.dialect)
    if kind not in DIALECTS:
        fail(f"--dialect {kind!r} is unknown; there are {', '.join(DIALECTS)}", code=2)
    return kind


def unanswered(url: str, path: str, access: EngineAccess, error: FetchError) -> str:
    """Why an engine gave no usable reply to `GET path`, with the options that help where it is a matter of certificates."""
    why = diagnose.of_failure(path, error)
    if not url.startswith("https:"):
        return why
    told = "none was shown" in why or "certificate that was shown" in why
    if error.loss is Loss.NO_REPLY and not told:
        # most servers end such connections without TLS's alert that says why
        shown = "does not trust the one that was shown" if access.shows else "was shown none"
        why = f"closes the connection without an answer: it may demand a client certificate, and {shown} ({path}: {error.detail})"
    elif not told and (error.loss is not Loss.CONNECT or "certificate" not in why):
        return why
    return f"{why}; here: --ca, --cert with --key, or --pool for the files of a pool"


def _usable(files: TlsFiles, now: float) -> ssl.SSLContext:
    """The context of these files. Raises CertificateError, also for a client certificate that is out of its dates."""
    context = engine_context(files)
    if files.certificate is not None and (refusal := validity_of(files.certificate).refusal(now)):
        raise CertificateError("certificate", f"{files.certificate} {refusal}")
    return context


def _option(key: str) -> str:
    return {"certificate": "cert", "private_key": "key"}.get(key, key)


def _key_of(variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        fail(f"--api-key-env {variable}: the variable is not set", code=2)
    return environment[variable].strip()
