import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.instructions.setup import CHAT, MESSAGES, STORED, Case, made


@pytest.mark.parametrize(("api", "stream"), [(CHAT, False), (MESSAGES, True), (STORED, False), (STORED, True)])
def test_the_worker_that_is_counted_answers_every_request(tmp_path: Path, api: str, stream: bool) -> None:
    case = Case("1k", backends=2, tenants=2, api=api, stream=stream)
    (tmp_path / "keys").write_text("\n".join(made(tmp_path, case)))
    (tmp_path / "case").write_bytes(msgspec.json.encode(case))
    command = [sys.executable, "-m", "bench.instructions.worker", str(tmp_path), "4", "6"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]  # it ends with an error when a request is refused or not answered
    assert ended.stdout.rpartition("\n")[0].rpartition("\n")[2].startswith("threads MainThread")
