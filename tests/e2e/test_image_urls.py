"""Images by URL and large bodies through a whole gateway: from a caller's socket, past a host of images, to an engine."""

from typing import Any

from backends.simengine import SimEngine, SimSettings
from gateway.http.image_fetch import ImageFetcher
from tests.gateway_harness import gateway
from tests.scripted_server import Peer, scripted

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 2000
DATA = "data:image/png;base64,"


async def answer(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: %d\r\n\r\n" % len(PNG) + PNG)


def chat(url: str) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}], "max_tokens": 3}


async def loopback(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_an_image_by_url_and_one_above_the_usual_size() -> None:
    async with scripted(answer) as host, SimEngine(SimSettings(models=("sim",), speed=2000.0)) as engine:
        policy = {
            "tenant": "acme",
            "models": [{"name": "sim", "pool": "chat"}],
            "image_urls": {"hosts": [f"images.test:{host.port}"]},
            "caps": {"body_bytes": 32 * 1024**2},
        }
        models = {"tenant": "*", "models": policy["models"]}
        async with gateway(engine.url, policies=(policy, models)) as running, running.client() as client, running.client("bolt") as other:
            url = f"http://images.test:{host.port}/a"
            object.__setattr__(running.deps, "images", ImageFetcher(loopback))
            refused = await client.post("/v1/chat/completions", json=chat(url))
            assert "no public address" in refused.json()["error"]["message"]
            assert "127.0.0.1" not in refused.text
            object.__setattr__(running.deps, "images", ImageFetcher(loopback, may_reach=lambda address: address == "127.0.0.1"))
            assert host.peers == []
            answered = await client.post("/v1/chat/completions", json=chat(url))
            assert (answered.status_code, len(host.peers)) == (200, 1)

            photograph = chat(DATA + "A" * (9 * 1024**2))
            answered = await client.post("/v1/chat/completions", json=photograph)
            assert answered.status_code == 200, (running.records[-1].failed, running.records[-1].detail)
            refused = await other.post("/v1/chat/completions", json=photograph)
            assert refused.status_code == 413
            assert "caps.body_bytes" in refused.json()["error"]["message"]
            assert (await other.post("/v1/chat/completions", json=chat(url))).status_code == 400
            await running.recorded(5)
            assert running.connections.large_bodies == 0
