"""Other gateways, each in a virtual environment of its own: `python -m bench.overhead.peers install`."""

import subprocess
import sys
from pathlib import Path

PINNED = {"litellm": "litellm[proxy]==1.106.2", "sglang-router": "sglang-router==0.3.2", "vllm-router": "vllm-router==0.1.17"}
PROGRAMS = {"litellm": "bin/litellm", "sglang-router": "bin/python", "vllm-router": "bin/vllm-router"}
HOME = Path(__file__).parents[1]


def folder(name: str) -> Path:
    """Where a peer is installed."""
    return HOME / f".venv-peers-{name}"


def installed(name: str) -> bool:
    """Whether a subject can run here; says so when not."""
    if name in PINNED and not (folder(name) / PROGRAMS[name]).exists():
        print(f"{name} is left out: not installed; run: python -m bench.overhead.peers install")
        return False
    return True


def main() -> int:
    """Install every peer."""
    if sys.argv[1:] != ["install"]:
        print("usage: python -m bench.overhead.peers install", file=sys.stderr)
        return 2
    for name, requirement in PINNED.items():
        subprocess.run([sys.executable, "-m", "venv", str(folder(name))], check=True)
        done = subprocess.run([str(folder(name) / "bin/python"), "-m", "pip", "install", "-q", requirement], check=False)
        print(f"{requirement} {'installed' if done.returncode == 0 else 'could not be installed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
