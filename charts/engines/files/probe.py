"""Probes of one engine from inside its container, where a kubelet cannot ask: over TLS with a client certificate, and to warm up.

`probe.py health` exits 0 when the engine answers 200. `probe.py warm` then also sends a few small requests once in each life of the
container, before the Pod is ready, so that no caller waits for kernels to be compiled. Settings come from the environment; only Python's
own library is used.
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

PORT = os.environ["PROBE_PORT"]
TLS = os.environ.get("PROBE_TLS", "")
TIMEOUT_S = float(os.environ.get("PROBE_TIMEOUT_S", "5"))
DONE = Path(os.environ.get("PROBE_DONE", "/tmp/tidegate-warm"))


def context() -> "ssl.SSLContext | None":
    """The engine's own certificate, as client too. The name is not checked: the connection stays in the Pod."""
    if not TLS:
        return None
    made = ssl.create_default_context(cafile=f"{TLS}/ca.crt")
    made.check_hostname = False
    made.load_cert_chain(f"{TLS}/tls.crt", f"{TLS}/tls.key")
    return made


def ask(path: str, body: "dict[str, object] | None" = None, timeout_s: float = TIMEOUT_S) -> int:
    """The status of one request."""
    url = f"{'https' if TLS else 'http'}://127.0.0.1:{PORT}{path}"
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    # vLLM's own variable: a container with a key asks for it
    if key := os.environ.get("VLLM_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(url, data=data, headers=headers)
    # no proxy of the environment stands between a container and itself
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context()))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            reply.read()
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def life() -> str:
    """The time at which the container's first process started: the folder of DONE outlives a container that starts anew in its Pod."""
    stat = Path(f"/proc/{os.environ.get('PROBE_PID', '1')}/stat").read_text()
    # the name of the process, which may hold blanks, ends with the last parenthesis; the start is field 22 of all (proc(5))
    return stat.rpartition(")")[2].split()[19]


def warmed() -> bool:
    """Whether this life of the container was warmed up."""
    try:
        return DONE.read_text() == life()
    except FileNotFoundError:
        return False


def warm() -> None:
    """Send the requests of the warm-up. Raises SystemExit where the engine refuses one."""
    model = os.environ["PROBE_MODEL"]
    tokens = int(os.environ.get("PROBE_TOKENS", "16"))
    for number in range(int(os.environ.get("PROBE_REQUESTS", "0"))):
        prompt = f"warm up {number} " * 32
        if os.environ.get("PROBE_KIND") == "embedding":
            status = ask("/v1/embeddings", {"model": model, "input": prompt}, float(os.environ.get("PROBE_WARM_S", "300")))
        else:
            asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
            status = ask("/v1/completions", asked, float(os.environ.get("PROBE_WARM_S", "300")))
        if status != 200:
            sys.exit(f"the engine answers {status} to the warm-up")
    DONE.write_text(life())


if __name__ == "__main__":
    try:
        status = ask("/health")
    except OSError as error:
        sys.exit(f"the engine does not answer: {error}")
    if status != 200:
        sys.exit(f"/health answers {status}")
    if sys.argv[1:] == ["warm"] and not warmed():
        warm()
