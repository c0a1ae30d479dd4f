"""Children are forked from a process that has imported what they need, and nothing that only its own start needs."""

import json
import subprocess
import sys
from pathlib import Path

SETTINGS = """
data: {bind: "127.0.0.1:0"}
admin: {bind: "127.0.0.1:0"}
secrets: {admin_token: {file: token}}
pools:
  - {name: chat, model: sim, backends: [{id: e0, url: "http://127.0.0.1:9"}]}
"""

PROGRAM = """
import json, os, sys
from pathlib import Path

from gateway.config.load import load_settings
from gateway.process import launch


def told(*_args, **_more):
    print(json.dumps(sorted(sys.modules)))
    return 0


launch.run = told  # the place at which children are forked
settings = Path("tidegate.yaml")
sys.exit(launch.launch(settings, load_settings(settings, os.environ), None))
"""

ONLY_TO_MIGRATE = {"alembic", "mako"}
OF_OTHER_STORES = {"asyncpg", "sqlalchemy.dialects.postgresql", "redis"}
OF_FEATURES_THAT_ARE_OFF = {"aiohttp", "cel_expr_python", "grpc", "httpx", "jsonschema", "jwt", "lightkube", "numpy", "tokenizers", "zmq"}
OF_EVERY_CHILD = {"aiosqlite", "sqlalchemy.dialects.sqlite.aiosqlite", "uvloop", "gateway.process.worker", "gateway.admin.app"}


def test_children_are_forked_without_what_they_do_not_need(tmp_path: Path) -> None:
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    (tmp_path / "token").write_text("an-admin-token-of-a-test")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text('tenant: "*"\nmodels:\n  - {name: sim, pool: chat}\n')
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    imported = set(json.loads(ended.stdout))
    assert (tmp_path / "tidegate.db").exists(), "the database is migrated by then"
    assert imported >= OF_EVERY_CHILD
    assert sorted(imported & (ONLY_TO_MIGRATE | OF_OTHER_STORES | OF_FEATURES_THAT_ARE_OFF)) == []
