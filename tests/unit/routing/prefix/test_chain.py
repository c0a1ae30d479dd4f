import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.prefix.chain import after_tokens, generation, of_text, of_tokens, root

SECRET = b"0123456789abcdef"
ROOT = root("m@1", "", "tenant-a", SECRET)
tokens = st.lists(st.integers(0, 3), max_size=40)
names = st.text(max_size=5)


@settings(deadline=None)
@given(tokens, st.integers(0, 40), st.integers(1, 7))
def test_a_grown_prompt_hashed_from_where_it_was_left_is_the_prompt_hashed_at_once(prompt: list[int], cut: int, block: int) -> None:
    before = of_tokens(ROOT, prompt[:cut], block)
    assert of_tokens(ROOT, prompt, block, before) == of_tokens(ROOT, prompt, block)
    text = bytes(prompt)
    assert of_text(ROOT, text, block, of_text(ROOT, text[:cut], block)) == of_text(ROOT, text, block)


@settings(deadline=None)
@given(tokens, tokens, st.integers(1, 7))
def test_two_chains_agree_exactly_as_far_as_their_prompts_do_in_whole_blocks(one: list[int], other: list[int], block: int) -> None:
    alike = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))) // block
    for of, made in ((of_tokens, list), (of_text, bytes)):
        chains = of(ROOT, made(one), block), of(ROOT, made(other), block)
        assert [len(chain) for chain in chains] == [len(one) // block, len(other) // block]
        assert chains[0][:alike] == chains[1][:alike]
        assert not set(chains[0][alike:]) & set(chains[1][alike:])


def test_what_holds_the_token_ids_does_not_matter() -> None:
    ids = list(range(200))
    assert of_tokens(ROOT, ids) == of_tokens(ROOT, tuple(ids)) == of_tokens(ROOT, array("I", ids))


@pytest.mark.req("ROUTERS-13")
@pytest.mark.req("ROUTERS-28")
@settings(deadline=None)
@given(st.tuples(names, names, names), st.tuples(names, names, names), tokens)
def test_no_two_of_revision_adapter_and_salt_share_a_hash(
    one: tuple[str, str, str], other: tuple[str, str, str], prompt: list[int]
) -> None:
    first, second = (root(*parts, SECRET) for parts in (one, other))
    assert (first == second) == (one == other)
    if one != other:
        assert not {first, *of_tokens(first, prompt, 2)} & {second, *of_tokens(second, prompt, 2)}
    assert root(*one, b"another secret of this length") != first


def test_parts_cannot_be_shifted_into_one_another() -> None:
    assert root("ab", "c", "", SECRET) != root("a", "bc", "", SECRET)
    assert root("m", "", "s", SECRET) != root("m", "s", "", SECRET)
    assert root("m", "", "\ud800", SECRET) != root("m", "", "", SECRET), "what is no UTF-8 is a salt as well"


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 65])
def test_a_secret_of_no_use_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="16 to 64"):
        root("m", "", "", secret)


@pytest.mark.req("ROUTERS-13")
def test_hashes_of_many_prompts_do_not_collide(record_property: Callable[[str, object], None]) -> None:
    seen: set[int] = set()
    for salt in range(100):
        start = root("m", "", str(salt), SECRET)
        for prompt in range(30):
            seen.update(of_tokens(start, [prompt, *range(255)], 16))
    assert len(seen) == 100 * 30 * 16
    # every shard gets its part
    shares = [sum(1 for block in seen if block & 63 == shard) for shard in range(64)]
    assert max(shares) < 1.3 * min(shares)
    record_property("figure", f"{len(seen):,} blocks of equal prompts under 100 salts, no collision")


@pytest.mark.req("ROUTERS-30")
def test_tools_and_template_arguments_are_part_of_what_is_hashed(record_property: Callable[[str, object], None]) -> None:
    system, question = "You are of use. " * 32, "What is the weather? " * 40

    def rendered(tools: str, date: str) -> bytes:
        return f"<sys>{system}{date}</sys><tools>{tools}</tools><user>{question}</user>".encode()

    weather = of_text(ROOT, rendered('[{"name": "weather"}]', "2026"))
    assert of_text(ROOT, rendered('[{"name": "weather"}]', "2026")) == weather
    for changed in (rendered('[{"name": "weathers"}]', "2026"), rendered("", "2026"), rendered('[{"name": "weather"}]', "2027")):
        chain = of_text(ROOT, changed)
        assert chain[:2] == weather[:2], "what comes before them is the same"
        assert not set(chain[2:]) & set(weather[2:])
    record_property("figure", f"other tools or template arguments: 2 of {len(weather)} blocks match, those before them; same: all")


def test_a_chain_is_as_long_as_its_whole_blocks() -> None:
    for length in range(600):
        assert len(of_text(ROOT, b"a" * length)) == length // 256
    chain = of_text(ROOT, b"a" * 2560)
    assert all(one != other for one, other in pairwise(chain)), "equal blocks at other places have other hashes"


def test_generations_are_equal_for_one_secret_only() -> None:
    assert generation(SECRET) == generation(SECRET)
    assert generation(SECRET) != generation(b"another secret..")
    assert len(generation(SECRET)) == 8


def test_another_interpreter_computes_the_same_chain() -> None:
    program = (
        f"from routing.prefix.chain import *; start = root('m@1', '', 'tenant-a', {SECRET!r}); "
        "print(of_text(start, bytes(1024)), after_tokens(start, [1 << 40]))"
    )
    told = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True).stdout)
    assert told == {f"{of_text(ROOT, bytes(1024))} {after_tokens(ROOT, [1 << 40])}\n"}
    assert all(0 <= block < 1 << 60 for block in (ROOT, *of_text(ROOT, bytes(1024))))
