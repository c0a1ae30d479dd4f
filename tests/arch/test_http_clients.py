"""One HTTP client per kind of traffic: the relay towards engines, httpx for the control plane, and httpx never where a worker starts.

The decision is in docs/explanation/decisions/0003-polls-over-the-upstream-port.md.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("backends", "domain", "gateway", "policies", "routing", "tenancy")
OTHERS = {"http.client", "urllib.request", "requests", "urllib3", "httpx2"}


def imported(module: ast.Module) -> set[str]:
    names = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module}


def test_the_control_plane_has_one_http_client() -> None:
    users = {
        str(path.relative_to(ROOT)): sorted(others)
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
        # parsing a file takes a hundred times longer than looking for the words
        if any(name in (text := path.read_text("utf-8")) for name in OTHERS) and (others := imported(ast.parse(text)) & OTHERS)
    }
    assert users == {}


def test_no_process_of_the_gateway_imports_httpx_at_its_start() -> None:
    script = (
        "import json, sys\n"
        "import gateway.process.launch, gateway.process.supervisor, gateway.process.worker, gateway.wiring.admin, gateway.wiring.requests\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "uvloop" in (modules := json.loads(done.stdout)) or "asyncio" in modules
    assert {"httpx", "httpcore", "pydantic_settings", "tiktoken"} & set(modules) == set()
