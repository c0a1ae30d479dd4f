"""When certificates expire, at a running gateway: the metric has those in use, before and after they are renewed."""

import asyncio
import datetime
import signal
import socket
import ssl
from pathlib import Path

import httpx
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.test_serve import Served, serving
from tests.engines.processes import free_port
from tests.timing import hang_s

pytestmark = pytest.mark.slow

SETTINGS = """
data: {{bind: "127.0.0.1:0", tls: {{certificate: chain.pem, private_key: chain.key}}}}
admin: {{bind: "127.0.0.1:0"}}
workers: {workers}
drain: {{accept_s: {accept_s}, grace_s: {grace_s}}}
pools:
  - name: chat
    model: sim
    tls: {{ca: ca.pem, certificate: gate.pem, private_key: gate.key}}
    backends: [{{id: e0, url: "{url}"}}]
"""
FAMILY = "tidegate_certificate_expires_timestamp_seconds"
TODAY = datetime.datetime(2026, 1, 1)
AUTHORITY = trustme.CA()


def issued(folder: Path, name: str, days: int) -> float:
    """A certificate and its key as files; returns when it expires."""
    ends = TODAY + datetime.timedelta(days=days)
    leaf = AUTHORITY.issue_cert(f"{name}.example", not_before=TODAY, not_after=ends)
    leaf.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    leaf.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    return ends.replace(tzinfo=datetime.UTC).timestamp()


async def expiries(client: httpx.AsyncClient, served: Served) -> dict[tuple[str, str], float]:
    text = (await client.get(f"{served.admin}/metrics")).text
    (family,) = [family for family in text_string_to_metric_families(text) if family.name == FAMILY]
    return {(sample.labels["use"], sample.labels["pool"]): sample.value for sample in family.samples}


async def test_the_certificates_in_use_say_when_they_expire(tmp_path: Path) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own, towards = issued(tmp_path, "chain", 2000), issued(tmp_path, "gate", 3000)
    async with (
        serving(tmp_path, "https://127.0.0.1:9", workers=2, settings=SETTINGS) as served,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):

        async def become(data: float, engines: float) -> None:
            meant = {("callers", "_none"): data, ("engines", "chat"): engines}
            async with asyncio.timeout(hang_s()):
                while await expiries(client, served) != meant:
                    await asyncio.sleep(0.1)

        await become(own, towards)
        # both are renewed; the one towards engines is taken up, the data port's only by new workers
        renewed, renewed_towards = issued(tmp_path, "chain", 4000), issued(tmp_path, "gate", 5000)
        await become(own, renewed_towards)
        served.process.send_signal(signal.SIGHUP)
        await become(renewed, renewed_towards)


async def test_the_endpoint_picker_takes_up_a_renewed_certificate_without_new_workers(tmp_path: Path) -> None:
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued(tmp_path, "chain", 2000)
    issued(tmp_path, "gate", 3000)
    first, port = issued(tmp_path, "picker", 1000), free_port()
    tls = f'picker: {{{{bind: "127.0.0.1:{port}", tenant: acme, tls: {{{{certificate: picker.pem, private_key: picker.key}}}}}}}}\n'

    def shown() -> float:
        """When the certificate expires that a new connection, to any of the workers, is shown."""
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port), timeout=hang_s()) as raw:
            with context.wrap_socket(raw, server_hostname="picker.example") as secured:
                return float(ssl.cert_time_to_seconds(str((secured.getpeercert() or {})["notAfter"])))

    async with (
        serving(tmp_path, "https://127.0.0.1:9", workers=2, settings=SETTINGS + tls) as served,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):

        async def become(ends: float) -> None:
            async with asyncio.timeout(hang_s()):
                while (await expiries(client, served)).get(("proxies", "_none")) != ends:
                    await asyncio.sleep(0.1)

        await become(first)
        assert await asyncio.to_thread(shown) == first
        renewed = issued(tmp_path, "picker", 4000)
        await become(renewed)  # the earliest of both workers
        assert {await asyncio.to_thread(shown) for _ in range(8)} == {renewed}
