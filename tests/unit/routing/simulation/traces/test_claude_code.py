"""Sessions of a coding agent, in the published form."""

import random
from pathlib import Path

from domain.clock import Rng
from routing.simulation.traces import load


def dice(name: str) -> Rng:
    return random.Random(f"0 {name}")


def session(name: str, first: int) -> str:
    return (
        f'{{"id":"{name}","models":["m"],"block_size":64,"hash_id_scope":"local","tool_tokens":1000,"system_tokens":100,"requests":['
        f'{{"t":0.0,"type":"n","model":"m","in":2100,"out":9,"hash_ranges":[[{first},32]],"think_time":0.0}},'
        '{"t":5.0,"type":"subagent","requests":[{"t":0.0,"type":"n","model":"h","in":900,"out":3,"hash_ranges":[[900,14]],"think_time":0.0}]},'
        f'{{"t":9.0,"type":"s","model":"m","in":3000,"out":7,"hash_ranges":[[{first},40],[700,6]],"think_time":8.0}}]}}\n'
    )


def test_turns_wait_and_share_prefixes(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(session("one", 1) + session("two", 1))
    one, nested, later, other, *_ = load(tmp_path / "t.jsonl", dice).turns
    assert [len(turn.chain) for turn in (one, nested, later)] == [4, 1, 5]
    assert list(one.chain) == list(later.chain[:4])
    assert (one.after, nested.after, later.after, later.think_s) == (-1, 0, 0, 8.0)
    assert one.session == later.session != nested.session
    assert other.session != one.session
    # 1,100 tokens of tools and system prompt: two whole blocks are everybody's, and ids mean nothing beyond a session
    assert list(one.chain[:2]) == list(other.chain[:2])
    assert not set(one.chain[2:]) & set(other.chain[2:])
