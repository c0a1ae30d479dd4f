"""A gateway and an engine on two machines, of which the second vanishes: run in a network namespace by `test_vanished.py`.

`unshare -n python -m tests.fault.two_machines CLIENT SILENCE_S` makes a second namespace for the engine with a cable between both,
starts requests, has every packet lost from then on without a word, and prints as JSON after how many seconds each request was over.
CLIENT is the gateway's client towards engines, `relay` or `aiohttp`. SILENCE_S is how long the gateway itself would wait for the
engine: more than what is tested, so that only TCP can end them.
"""

import asyncio
import json
import subprocess
import sys
import time

from tests.gateway_harness import Gateway, chat, gateway, stream

HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 9001
NOWHERE = "02:00:00:00:00:99"
"""A hardware address that nobody has: frames to it are lost."""


def sh(command: str) -> str:
    """What a shell command prints. Raises CalledProcessError."""
    return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout


def engine_apart() -> "subprocess.Popen[bytes]":
    """An engine in a namespace of its own, reachable at THERE. It generates a token in 0.65 s."""
    command = ["unshare", "-n", sys.executable, "-m", "backends.simengine", "--host", "0.0.0.0", "--port", str(PORT)]
    engine = subprocess.Popen([*command, "--model", "sim", "--speed", "0.01"])
    there = f"nsenter -t {engine.pid} -n"
    time.sleep(0.5)  # until it is in its namespace
    sh(f"ip link set lo up && ip link add v0 type veth peer name v1 netns {engine.pid}")
    sh(f"ip addr add {HERE}/24 dev v0 && ip link set v0 up")
    sh(f"{there} ip addr add {THERE}/24 dev v1 && {there} ip link set v1 up && {there} ip link set lo up")
    return engine


def lose_every_packet(engine: "subprocess.Popen[bytes]") -> None:
    """Nothing gets through from now on, and neither side is told."""
    there = f"nsenter -t {engine.pid} -n"
    sh(f"ip neigh replace {THERE} lladdr {NOWHERE} dev v0 nud permanent")
    sh(f"{there} ip neigh replace {HERE} lladdr {NOWHERE} dev v1 nud permanent")


async def over_after(running: Gateway, silence_s: float, engine: "subprocess.Popen[bytes]") -> dict[str, float]:
    """Seconds from the loss to the end of each kind of request."""
    async with running.client() as client:
        client.timeout = None
        ends: dict[str, float] = {}

        async def streaming() -> None:
            seen = await stream(client, max_tokens=10_000, ignore_eos=True)
            assert len(seen.errors) == 1, seen
            ends["stream under way"] = time.monotonic()

        async def waiting(name: str) -> None:
            reply = await client.post("/v1/chat/completions", json=chat(max_tokens=10_000, ignore_eos=True))
            assert reply.status_code in (502, 504), reply.text
            ends[name] = time.monotonic()

        tasks = [asyncio.create_task(streaming()), asyncio.create_task(waiting("answer awaited"))]
        async with asyncio.timeout(30):
            while running.deps.pool_states.in_flight("e0") < 2:
                await asyncio.sleep(0.05)
            # leaves an idle connection, which the last one then takes
            assert (await client.post("/v1/chat/completions", json=chat(max_tokens=1))).status_code == 200
        await asyncio.to_thread(lose_every_packet, engine)
        lost_at = time.monotonic()
        tasks.append(asyncio.create_task(waiting("request that never arrived")))
        await asyncio.wait_for(asyncio.gather(*tasks), silence_s)
        assert running.open_holds == 0
        assert running.deps.pool_states.in_flight("e0") == 0
        return {name: end - lost_at for name, end in ends.items()}


async def main(client: str, silence_s: float) -> None:
    """See the module."""
    engine = engine_apart()
    try:
        engines: dict[str, object] = {"client": client, "idle_connection_s": 3600.0}
        engines |= dict.fromkeys(("first_token_base_s", "first_token_cap_s", "token_gap_s", "plain_timeout_s"), silence_s)
        async with asyncio.timeout(20):
            while await asyncio.to_thread(subprocess.call, ["bash", "-c", f"exec 2>/dev/null 3<>/dev/tcp/{THERE}/{PORT}"]):
                await asyncio.sleep(0.1)
        # no polls after the first: only the connections of requests shall tell
        async with gateway(f"http://{THERE}:{PORT}", poll=False, engines=engines) as running:
            print(json.dumps(await over_after(running, silence_s, engine)), flush=True)
    finally:
        engine.kill()
        engine.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
