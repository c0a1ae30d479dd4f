"""How the gateways of all worlds are configured: less patience than usual, so that ten minutes have room for much, and little room on each
engine, so that requests have to wait."""

import tempfile
from pathlib import Path

from gateway.config.load import Settings
from policies.compile import PolicySet, compiled
from policies.schema import PolicyDocument
from tests.world.callers import MODEL
from tests.world.engines import PORT
from tests.world.plan import ENGINES

BACKENDS = [{"id": one, "url": f"http://{one}:{PORT}", "max_in_flight": 2} for one in ENGINES]
PATIENCE = {
    "connect_timeout_s": 1,
    "first_token_base_s": 4,
    "first_token_cap_s": 8,
    "token_gap_s": 6,
    "plain_timeout_s": 15,
    "heartbeat_s": 3,
    "poll_s": 12,
    "signals_s": 45,
    "idle_connection_s": 30,
}
EDGE = {"body_timeout_s": 8, "header_timeout_s": 5, "keepalive_s": 20, "reply_buffer_bytes": 4096, "slow_reader_s": 5}
APART = {"share_between_hosts": False, "index_file": None}
"""The routing of gateways that tell each other nothing: a world has no socket that its gateways could subscribe at."""
NO_FILES = {"enabled": False}
"""A world has no database in which batches could be looked for."""
SETTINGS = Settings.model_validate(
    {
        "routing": APART,
        "files": NO_FILES,
        "pools": [{"name": "chat", "model": MODEL, "backends": BACKENDS}],
        "stores": {"counters": "redis://store:6379"},
        "data": {"limits": EDGE},
        "engines": PATIENCE,
        "queue": {"max_requests": 12, "max_requests_per_tenant": 8, "preempt": "batch"},
        "drain": {"accept_s": 1, "grace_s": 10},
        "log": {"access": False},
        "explanations": {"folder": None},
    }
).based_at(Path(tempfile.gettempdir()))


def _policies(routing: str) -> PolicySet:
    usual = {
        "models": [{"name": MODEL, "pool": "chat"}],
        "expose_headers": True,
        "routing": routing,
        "max_output_tokens": 60,
        "max_wait_s": 15,
    }
    own = (("*", "default"), ("acme", "interactive"), ("bolt", "batch"), ("dune", "critical"))
    # guard rules hold and judge the texts of one tenant, and find nothing in them
    guards = {"rules": [{"id": "absent", "kind": "words", "words": ["a word that no engine says"], "mode": "block"}, NOTED]}
    return compiled(
        PolicyDocument.model_validate({"tenant": tenant, "class": class_, **usual, **({"guards": guards} if tenant == GUARDED else {})})
        for tenant, class_ in own
    )


GUARDED = "acme"
NOTED = {"id": "noted", "kind": "pii", "mode": "flag", "on": ["output"]}
POLICIES = [_policies("predicted_latency"), _policies("round_robin")]
