"""`tidegate engine check` and `engine profile` at engines that demand a client certificate: real TLS in front of a simulated engine."""

import asyncio
import contextlib
import datetime
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from backends.simengine import SimEngine, SimSettings
from gateway.cli import app
from routing.profile import read_profile
from tests.command_line import Commands, Result
from tests.e2e.test_engine_tls import NAMES, TLS, demanding, put, terminated
from tests.unit.gateway.cli.test_engine_profile import QUICK

LONG_AGO = datetime.datetime(2020, 1, 1)
CA, CERT, KEY = NAMES
SHOWN = ("--ca", CA, "--cert", CERT, "--key", KEY)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which commands run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Authorities:
    """The CA of the engines and that of their clients."""

    def __init__(self, folder: Path) -> None:
        self.server, self.clients = trustme.CA(), trustme.CA()
        self.folder = folder
        put(folder, self.clients, self.server)

    def settings(self, url: str, **tls: str) -> None:
        """A settings file with two pools: `tls` has the engine, with a key, and `plain` another one."""
        (self.folder / "engine.key").write_text("the-engines-key")
        pools = [
            {"name": "tls", "model": "m", "tls": tls or TLS, "api_key": {"file": "engine.key"}, "backends": [{"id": "e1", "url": url}]},
            {"name": "plain", "model": "m", "dialect": "sglang", "backends": [{"id": "e2", "url": "http://127.0.0.1:9"}]},
        ]
        (self.folder / "policies").mkdir()
        (self.folder / "policies" / "p.yaml").write_text("tenants: [{name: t}]\nmodels: [{name: m, pool: tls}]\n")
        (self.folder / "tidegate.yaml").write_text(json.dumps({"pools": pools, "policies": "policies"}))

    def expired(self) -> None:
        """A client certificate that was valid in 2020."""
        leaf = self.clients.issue_cert("gate.example", not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=30))
        leaf.cert_chain_pems[0].write_to_path(str(self.folder / CERT))
        leaf.private_key_pem.write_to_path(str(self.folder / KEY))


@pytest.fixture
def authorities(folder: Path) -> Authorities:
    return Authorities(folder)


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(Commands(env={"COLUMNS": "250"}).invoke, app, ["engine", *arguments])


async def check_at(authorities: Authorities, *arguments: str, context: ssl.SSLContext | None = None) -> tuple[Result, int]:
    """The check of an engine behind TLS; and how many connections showed it a certificate."""
    demands = context or demanding(authorities.server, authorities.clients)
    async with SimEngine(SimSettings(models=("m",))) as engine, terminated(engine, demands) as front:
        done = await run("check", f"https://127.0.0.1:{front.port}", *arguments)
    return done, front.shown.total()


async def test_the_options_show_a_client_certificate(authorities: Authorities) -> None:
    done, shown = await check_at(authorities, *SHOWN)
    assert "load: told at" in done.stdout
    assert shown > 0


async def test_a_pool_of_the_settings_says_how_its_engines_are_asked(authorities: Authorities) -> None:
    async with (
        SimEngine(SimSettings(models=("m",))) as engine,
        terminated(engine, demanding(authorities.server, authorities.clients)) as front,
    ):
        url = f"https://127.0.0.1:{front.port}"
        authorities.settings(url)
        named = json.loads((await run("check", url, "--pool", "tls", "--json")).stdout)
        whole = json.loads((await run("check", "--json")).stdout)
        only = json.loads((await run("check", "--pool", "tls", "--json")).stdout)
        pair = json.loads((await run("check", url, "--pool", "tls", "--cert", CERT, "--key", KEY, "--json")).stdout)
    assert [one["id"] for one in whole["engines"]] == ["e1", "e2"]
    assert whole["engines"][:1] == only["engines"] == named["engines"]
    assert pair["engines"] == named["engines"], "the pool's CA stands beside a certificate of one's own"
    assert {"what": "load", "state": "ok", "text": "told at /metrics"} in named["engines"][0]["findings"]
    assert all(one.headers[b"authorization"] == b"Bearer the-engines-key" for one in engine.received)


async def test_an_engine_behind_mtls_is_profiled(authorities: Authorities) -> None:
    async with (
        SimEngine(SimSettings(models=("other", "m"), speed=20.0)) as engine,
        terminated(engine, demanding(authorities.server, authorities.clients)) as front,
    ):
        url = f"https://127.0.0.1:{front.port}"
        authorities.settings(url)
        refused = await run("profile", url, "--ca", CA, *QUICK)
        by_options = await run("profile", url, *SHOWN, *QUICK, "--out", "options.json")
        by_pool = await run("profile", url, "--pool", "tls", *QUICK, "--out", "pool.json")
        compared = await run("profile", url, *SHOWN, "--compare", engine.url, "--model", "m", "--model", "other", *QUICK, "--json")
    assert refused.exit_code == 1
    assert "it may demand a client certificate, and was shown none" in refused.stderr
    assert by_options.exit_code == by_pool.exit_code == 0, by_options.output + by_pool.output
    assert read_profile(Path("options.json").read_bytes()).served == "other", "the first that it lists"
    assert read_profile(Path("pool.json").read_bytes()).served == "m", "that of the pool"
    assert [one["served"] for one in json.loads(compared.stdout)["profiles"]] == ["m", "other"]


async def test_what_a_pool_shows_its_engines_goes_to_no_other_server(authorities: Authorities) -> None:
    async with (
        SimEngine(SimSettings(models=("m",), speed=20.0)) as engine,
        SimEngine(SimSettings(models=("m",), speed=20.0)) as other,
        terminated(engine, demanding(authorities.server, authorities.clients)) as front,
    ):
        url = f"https://127.0.0.1:{front.port}"
        authorities.settings(url)
        done = await run("profile", url, "--pool", "tls", "--compare", other.url, *QUICK)
    assert done.exit_code == 0, done.output
    assert all(b"authorization" in one.headers for one in engine.received)
    assert other.received and not [one for one in other.received if b"authorization" in one.headers]


async def test_an_engine_that_refuses_our_certificate_is_explained(authorities: Authorities) -> None:
    """As engines refuse it that end the connection and say nothing: asyncio's servers, and so vLLM's."""
    unshown, _ = await check_at(authorities, "--ca", CA)
    assert unshown.exit_code == 1
    assert "closes the connection without an answer: it may demand a client certificate, and was shown none" in unshown.stdout
    assert "here: --ca, --cert with --key, or --pool" in unshown.stdout
    unknown, _ = await check_at(authorities, *SHOWN, context=demanding(authorities.server, trustme.CA()))
    assert "it may demand a client certificate, and does not trust the one that was shown" in unknown.stdout


@contextmanager
def blocking_server(context: ssl.SSLContext) -> Iterator[str]:
    """A server that sends TLS's alerts, as those do that OpenSSL itself writes for."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                    secured.recv(65_536)

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_an_alert_of_tls_says_what_the_engine_wants(authorities: Authorities) -> None:
    with blocking_server(demanding(authorities.server, authorities.clients)) as url:
        unshown = await run("check", url, "--ca", CA)
    with blocking_server(demanding(authorities.server, trustme.CA())) as url:
        unknown = await run("check", url, *SHOWN)
    assert "demands a client certificate, and none was shown; write the pool's tls.certificate and tls.private_key" in unshown.stdout
    assert "does not trust the client certificate that was shown: it does not know its CA" in unknown.stdout
    assert "here: --ca, --cert with --key, or --pool" in unshown.stdout


async def test_an_engine_that_is_not_trusted_is_explained(authorities: Authorities) -> None:
    trustme.CA().cert_pem.write_to_path("other.pem")
    for ca in ((), ("--ca", "other.pem")):
        untrusted, shown = await check_at(authorities, "--cert", CERT, "--key", KEY, *ca)
        assert untrusted.exit_code == 1
        assert "its certificate is not trusted: nobody here knows its CA; name that CA as the pool's tls.ca" in untrusted.stdout
        assert "here: --ca" in untrusted.stdout
        assert shown == 0
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old = authorities.server.issue_cert("127.0.0.1", not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=30))
    old.configure_cert(served)
    expired, _ = await check_at(authorities, *SHOWN, context=served)
    assert "its certificate is not trusted: it has expired; renew it" in expired.stdout


@pytest.mark.parametrize("command", ["check", "profile"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ca", "none.pem"), "--ca: none.pem is no file that can be read; name a PEM file"),
        (("--cert", "none.pem", "--key", KEY), "--cert: none.pem is no file that can be read; name a PEM file"),
        (("--cert", CERT, "--key", "none.key"), "--key: none.key is no file that can be read; name a PEM file"),
        (("--ca", "tidegate.yaml"), "--ca: tidegate.yaml holds no certificate; name a PEM file with the CAs of the engines"),
        (("--cert", CERT, "--key", "other.key"), f"--cert: {CERT} and other.key cannot be used together; name a PEM chain and the key"),
        (("--cert", CERT), "--cert says half of a client certificate: name the other file with --key"),
        (("--key", KEY), "--key says half of a client certificate: name the other file with --cert"),
        (("--pool", "chat"), "--pool chat: tidegate.yaml has tls, plain"),
        (("--api-key-env", "NOT_SET_HERE"), "--api-key-env NOT_SET_HERE: the variable is not set"),
    ],
)
async def test_what_cannot_be_used_ends_the_command_before_anything_is_asked(
    authorities: Authorities, command: str, arguments: tuple[str, ...], sentence: str
) -> None:
    authorities.settings("https://127.0.0.1:9")
    trustme.CA().issue_cert("x.example").private_key_pem.write_to_path("other.key")
    done = await run(command, "https://127.0.0.1:9", *arguments)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output


async def test_an_expired_client_certificate_is_not_shown(authorities: Authorities) -> None:
    authorities.settings("https://127.0.0.1:9")
    authorities.expired()
    by_options = await run("check", "https://127.0.0.1:9", *SHOWN)
    assert (by_options.exit_code, by_options.stderr.strip()) == (2, f"--cert: {CERT} has expired at 2020-01-31 00:00 UTC; renew it")
    by_pool = await run("check")
    assert by_pool.exit_code == 1
    assert "pool tls: " in by_pool.stderr
    assert "has expired at 2020-01-31 00:00 UTC; renew it" in by_pool.stderr


async def test_options_of_tls_need_an_engine_with_tls(authorities: Authorities) -> None:
    plain = await run("check", "http://127.0.0.1:9", "--ca", CA)
    assert (plain.exit_code, plain.stderr.strip()) == (2, "--ca is for TLS, and http://127.0.0.1:9 is asked without; write https://")
    authorities.settings("https://127.0.0.1:9")
    whole = await run("check", "--ca", CA)
    assert (whole.exit_code, whole.stderr.strip()[:51]) == (2, "--ca, --cert, --key and --api-key-env go with a URL")
