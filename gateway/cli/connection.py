"""Where a command finds its gateway: the admin port's address, the token, and the way to work without a gateway.

The address is that of `--admin`, else of the variable TIDEGATE_ADMIN_URL, else `admin.bind` of the settings file at hand, else
127.0.0.1:8081. The token is that of `--token-file`, else of the variable TIDEGATE_ADMIN_TOKEN, else `secrets.admin_token` of the settings
file, which is sent only to the address of the same file. It never comes from the command line, which every user of the machine can read.

Commands that only need the database (`StoreOptions`) go over the admin API where a gateway runs. With `--offline`, and where the
connection to the address of the settings file is refused, they run the same admin API inside the command, on the database of the file.
"""

import contextlib
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

import typer

from gateway.cli.admin_client import ADMIN, AdminClient, AdminHttp, Transport
from gateway.cli.groups import Options
from gateway.cli.printing import err, fail

TOKEN_VARIABLE: Final = "TIDEGATE_ADMIN_TOKEN"
URL_VARIABLE: Final = "TIDEGATE_ADMIN_URL"
DEFAULT_CONFIG: Final = Path("tidegate.yaml")
CONNECT_WITHIN_S: Final = 2.0
PANEL: Final = "The gateway"

Config = Annotated[Path, typer.Option("--config", "-c", help="The settings file.", rich_help_panel=PANEL)]
ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that listen everywhere, and the ones to connect to."""


class AdminAddress(NamedTuple):
    """The address of an admin port, and where it is written."""

    url: str
    """Empty where the settings leave the port to the system."""
    source: str
    """For messages: the option, variable or file."""
    settings: "LocalSettings | None" = None
    """The settings file that the address comes from; None for an address from elsewhere."""


class LocalSettings(NamedTuple):
    """The parts of a settings file that a client needs; the rest of the file may have mistakes."""

    path: Path
    bind: str
    token: Any
    """`secrets.admin_token` as it is written; None where it is not."""


@dataclass
class GatewayOptions(Options):
    """The options of commands that need a running gateway."""

    admin: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help=f"The gateway's admin port; default: {URL_VARIABLE}, else admin.bind of --config.", rich_help_panel=PANEL
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Holds the admin token or a key with a role; default: {TOKEN_VARIABLE}, else secrets.admin_token of --config.",
            rich_help_panel=PANEL,
        ),
    ] = None
    config: Config = DEFAULT_CONFIG

    def public(self) -> AdminClient:
        """A client of the admin port's routes that need no token."""
        return AdminClient(self._over_http(self._known(self.place())))

    def api(self, *, quiet: bool = False) -> AdminClient:
        """A client of the admin API.

        Args:
            quiet: refusals are raised without being printed.
        """
        place = self._known(self.place())
        return AdminClient(self._over_http(place), token_for(self.token_file, place, self._without()), quiet=quiet)

    def api_or_none(self) -> AdminClient | None:
        """A quiet client of the admin API; None where no token is at hand."""
        place = self._known(self.place())
        at_hand = self.token_file is not None or os.environ.get(TOKEN_VARIABLE, "").strip() or _token_of_settings(place)
        return self.api(quiet=True) if at_hand else None

    def place(self) -> AdminAddress:
        """The address of the admin port; ends the command when it is none."""
        if self.admin is not None:
            return AdminAddress(self.admin, "--admin")
        if url := os.environ.get(URL_VARIABLE, "").strip():
            return AdminAddress(url, URL_VARIABLE)
        settings = local_settings(self.config)
        if settings is None:
            return AdminAddress(ADMIN, f"the default; there is no {self.config} here")
        where = f"admin.bind of {settings.path}"
        return AdminAddress(url_to(settings.bind, where), where, settings)

    def _over_http(self, place: AdminAddress) -> AdminHttp:
        return AdminHttp(place.url, place.source, self._without())

    def _known(self, place: AdminAddress) -> AdminAddress:
        if not place.url:
            fail(f"{place.source} has port 0, so the address is unknown: name the one that `tidegate serve` prints with --admin", code=2)
        return place

    def _without(self) -> str:
        """A way to do without a gateway, for messages; empty where there is none."""
        return ""


@dataclass
class StoreOptions(GatewayOptions):
    """The options of commands that can also work on the database without a gateway."""

    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Ask no gateway: work on the database of --config. Gateways follow within 5 s.", rich_help_panel=PANEL
        ),
    ] = False
    _opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False, repr=False)

    def api(self, *, quiet: bool = False) -> AdminClient:
        """A client of the admin API: of the gateway's, else of one in this process on the database of the settings."""
        if self.offline:
            if self.admin is not None:
                fail("--offline works on the database of --config and --admin names a gateway: leave one of them out", code=2)
            return self._here(quiet)
        place = self.place()
        if place.settings is not None and (not place.url or nobody_listens(place.url)):
            reason = f"no gateway answers at {place.url}" if place.url else "admin.bind has port 0, so no gateway can be asked"
            err.print(f"note: {reason}; working on the database of {self.config} (--offline)", markup=False, soft_wrap=True)
            return self._here(quiet)
        return super().api(quiet=quiet)

    def close(self) -> None:
        """Close the database, where it was opened."""
        self._opened.close()

    def _here(self, quiet: bool) -> AdminClient:
        # imported only here: the import takes as long as a gateway's start
        from gateway.cli.offline import OfflineApi

        api: Transport = self._opened.enter_context(OfflineApi(self.config))
        return AdminClient(api, quiet=quiet)

    def _without(self) -> str:
        return f", or add --offline to work on the database of {self.config}"


def local_settings(path: Path) -> LocalSettings | None:
    """What a client needs of the settings file; None where the default file does not exist. Ends the command for a file that is none."""
    written = written_settings(path, "a gateway with --admin")
    if written is None:
        return None
    admin, secrets = section_of(written, "admin"), section_of(written, "secrets")
    bind = admin.get("bind")
    return LocalSettings(path, bind if isinstance(bind, str) else urlsplit(ADMIN).netloc, secrets.get("admin_token"))


def written_settings(path: Path, otherwise: str) -> Any:
    """The values of the settings file as they are written, for clients of a gateway, whom mistakes elsewhere in the file do not concern;
    None where the default file does not exist. Ends the command for a file that is none.

    Args:
        otherwise: what the user may name instead of a file, for the message.
    """
    from gateway.config.settings_file import read_settings_file
    from policies.yaml.problems import ConfigError

    if path == DEFAULT_CONFIG and not path.exists():
        return None
    try:
        return read_settings_file(path, os.environ)[0].data
    except ConfigError as error:
        fail(f"{error}\nname another settings file with -c, or {otherwise}", code=2)


def section_of(written: Any, name: str) -> dict[str, Any]:
    """A section of written settings; empty where it is missing or no mapping."""
    section = written.get(name) if isinstance(written, dict) else None
    return section if isinstance(section, dict) else {}


def url_to(bind: str, where: str, scheme: str = "http") -> str:
    """The URL to reach a listener of this machine; empty for port 0. Ends the command for a text that is no address.

    Args:
        bind: as it is written, `host:port`.
        where: the setting and its file, for the message.
    """
    from gateway.config.addresses import split_address

    try:
        host, port = split_address(bind)
    except ValueError as error:
        fail(f"{where} {error}", code=2)
    host = ANY_HOST.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" if port else ""


def nobody_listens(url: str) -> bool:
    """Whether a connection to the address is refused; any other failure leaves it open."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), CONNECT_WITHIN_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def token_for(file: Path | None, place: AdminAddress, without: str = "") -> str:
    """The admin token for this address; ends the command with what to do when there is none that is usable."""
    if file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--token-file {file} cannot be read ({type(error).__name__})", code=2)
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip() or _token_of_settings(place) or _no_token(place, without)
    if not token.isascii() or not token.isprintable():
        fail("the admin token has characters that no token has; look at the file or variable it comes from", code=2)
    return token


def _token_of_settings(place: AdminAddress) -> str:
    """The token that the settings file refers to; empty where it refers to none."""
    written = place.settings.token if place.settings is not None else None
    if place.settings is None or not isinstance(written, dict):
        return ""
    from gateway.config.secrets import SecretError, SecretReference, read_reference

    try:
        reference = SecretReference(file=written.get("file"), env=written.get("env"))
        return read_reference(reference, place.settings.path.resolve().parent, os.environ)
    except (SecretError, ValueError) as error:
        fail(f"secrets.admin_token of {place.settings.path}: {error}; or set {TOKEN_VARIABLE}, or name a file with --token-file", code=2)


def _no_token(place: AdminAddress, without: str) -> str:
    if nobody_listens(place.url):
        fail(f"no gateway answers at {place.url} ({place.source}); start one with `tidegate serve`, or name its admin port with --admin")
    lines = [f"the gateway at {place.url} ({place.source}) takes commands with an admin token, and there is none:"]
    lines.append(f"  if the gateway has one, set {TOKEN_VARIABLE} or name a file that holds it with --token-file{without}")
    if place.settings is not None:
        lines += [
            f"  else make one:    (umask 077; openssl rand -hex 32 > {place.settings.path.parent / 'admin-token'})",
            f"  add to {place.settings.path}:    secrets: {{admin_token: {{file: admin-token}}}}",
            "  and let the gateway read it: send SIGHUP to the process whose pid its ready line says",
        ]
    fail("\n".join(lines), code=2)
