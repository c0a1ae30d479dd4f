"""What the router is told of a prompt: its tokens and its chain, in time, and the same for the same prompt."""

import asyncio
import json
import random
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt.count import BUDGET_S, PromptCounts
from gateway.prompt.reader import MIN_PARTIAL_TOKENS, Prompt, Prompts
from gateway.prompt.vocabulary import Ids, ModelVocabulary
from routing.prefix.chain import BLOCK_TOKENS, STRIDE, LazyChain, of_text, of_tokens
from routing.prefix.index import PrefixIndex
from tests.timing import HANG_S
from tests.world.loop import VirtualLoop

TOOL = {"type": "function", "function": {"name": "weather", "description": "How it is outside. " * 40}}
OTHER = {"type": "function", "function": {"name": "time", "description": "How late it is. " * 40}}
TEMPLATE = (
    "{% for t in tools or [] %}{{ t | tojson }} <end> {% endfor %}"
    "{% for m in messages %}{{ m.role }} {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)
ROOT, SCOPE = 77, "acme"


@pytest.fixture
def vocabulary(tmp_path: Path) -> ModelVocabulary:
    words = {"<end>": 0, "?": 1, **{word: at for at, word in enumerate(["sea", "ship", "is", "wide", "user", "assistant", "system"], 2)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["<end>"])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return ModelVocabulary(tmp_path, str)


@contextmanager
def prompts(vocabulary: ModelVocabulary | None = None, budget_s: float = HANG_S, **more: Any) -> Iterator[Prompts]:
    """`budget_s`: how long a prompt is waited for at most; by default no busy machine makes one late."""
    own = {"chat": vocabulary} if vocabulary is not None else {}
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as executor, pytest.MonkeyPatch.context() as patch:
        patch.setitem(Prompts.read.__kwdefaults__, "wait_s", budget_s)
        yield Prompts(own, executor, loop, **more)


def ask(endpoint: Endpoint = Endpoint.CHAT, /, **fields: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **fields}).encode())


def chat(*texts: str, **fields: Any) -> Ask:
    roles = ("user", "assistant")
    return ask(messages=[{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)], **fields)


def matched(first: Prompt, then: Prompt) -> int:
    """Blocks of `then` that a backend holds which has served `first`."""
    index = PrefixIndex(100_000)
    index.stored("gpu-0", list(first.chain))
    return index.match(then.chain, 0.0).held("gpu-0")


LONG = "the sea is wide " * 100


async def test_with_the_models_tokenizer_the_chain_is_over_its_ids(vocabulary: ModelVocabulary) -> None:
    with prompts(vocabulary) as reads:
        prompt = await reads.read(chat(LONG), "chat", ROOT, SCOPE)
        assert (prompt.tokens, prompt.counted, prompt.block_tokens) == (403, True, BLOCK_TOKENS)
        rendered = vocabulary._pieces._tokenizer.encode(f"user {LONG} <end> assistant ").ids
        assert list(prompt.chain) == of_tokens(ROOT, rendered)
        assert len(rendered) == prompt.tokens
        by_ids = await reads.read(ask(Endpoint.COMPLETIONS, prompt=rendered), "chat", ROOT, SCOPE)
        assert list(by_ids.chain) == list(prompt.chain)


@pytest.mark.req("ROUTERS-30")
@pytest.mark.parametrize("own", [True, False])
async def test_the_same_tools_are_credited_in_full_and_others_not_at_all(vocabulary: ModelVocabulary, own: bool) -> None:
    with prompts(vocabulary if own else None) as reads:
        system = {"role": "system", "content": LONG}
        talk = [system, {"role": "user", "content": LONG}]
        first = await reads.read(ask(messages=talk, tools=[TOOL]), "chat", ROOT, SCOPE)
        same = await reads.read(ask(messages=talk, tools=[TOOL], temperature=0.3, tool_choice="auto"), "chat", ROOT, SCOPE)
        other = await reads.read(ask(messages=talk, tools=[OTHER]), "chat", ROOT, SCOPE)
        none = await reads.read(ask(messages=talk), "chat", ROOT, SCOPE)
        grown = await reads.read(
            ask(messages=[*talk, {"role": "assistant", "content": "wide"}, {"role": "user", "content": LONG}], tools=[TOOL]),
            "chat",
            ROOT,
            SCOPE,
        )
        assert matched(first, same) == len(first.chain) > 4
        assert matched(first, other) == matched(first, none) == 0
        assert len(first.chain) - 1 <= matched(first, grown) < len(grown.chain)
        assert first.template == same.template == grown.template != other.template
        assert 0 not in (first.template, other.template)


@pytest.mark.req("ROUTERS-30")
async def test_other_template_fields_share_nothing_without_a_tokenizer() -> None:
    with prompts() as reads:
        plain = await reads.read(chat(LONG), "chat", ROOT, SCOPE)
        for more in ({"reasoning_effort": "high"}, {"documents": [{"a": 1}]}, {"enable_thinking": False}):
            assert matched(plain, await reads.read(chat(LONG, **more), "chat", ROOT, SCOPE)) == 0


async def test_another_root_shares_nothing(vocabulary: ModelVocabulary) -> None:
    for own in (vocabulary, None):
        with prompts(own) as reads:
            one, other = [await reads.read(chat(LONG), "chat", root, SCOPE) for root in (1, 2)]
            assert matched(one, other) == 0
            assert (one.template, other.template) == (0, 0)


async def test_without_a_tokenizer_tokens_are_estimated_from_what_engines_told() -> None:
    with prompts() as reads:
        prompt = await reads.read(chat(LONG), "chat", ROOT, SCOPE)
        assert (prompt.counted, prompt.block_tokens) == (False, 64)
        assert list(prompt.chain) == of_text(ROOT, chat(LONG).prompt[1:-1])
        assert 400 <= prompt.tokens <= 420
        for _ in range(500):
            reads.learn(prompt, "chat", 800)
        again = await reads.read(chat(LONG), "chat", ROOT, SCOPE)
        assert 790 <= again.tokens <= 801
        assert 120 <= again.block_tokens <= 126
        assert (await reads.read(chat(LONG), "other", ROOT, SCOPE)).tokens == prompt.tokens


async def test_an_image_comes_to_what_the_settings_say(vocabulary: ModelVocabulary) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    one = ask(messages=[{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}])
    with prompts(vocabulary, image_tokens={"chat": 1500}) as reads:
        prompt = await reads.read(one, "chat", ROOT, SCOPE)
        assert not prompt.counted
        assert 1500 < prompt.tokens < 1600
        assert prompt.text_bytes == 0


class Slow(ModelVocabulary):
    """Tokenises the first part of a prompt, and the rest when it is let."""

    slow_bytes = 100

    def __init__(self, first: int) -> None:
        self.first, self.go, self.calls = first, threading.Event(), 0

    def read(self, ask: Ask, scope: str, into: Any) -> None:
        self.calls += 1
        into.add(_ids(self.first))
        self.go.wait(HANG_S)
        into.add(_ids(5000))
        into.whole = True


def _ids(count: int) -> Ids:
    return array("I", range(count))


@pytest.mark.parametrize("first", [10, MIN_PARTIAL_TOKENS])
async def test_a_long_prompt_is_told_by_what_is_known_in_time(first: int) -> None:
    slow = Slow(first)
    with prompts(slow, budget_s=0.5) as reads:  # time enough for a thread to tokenise the first part
        prompt = await reads.read(chat(LONG * 20), "chat", ROOT, SCOPE)
        assert (prompt.late, prompt.counted) == (True, False)
        assert prompt.tokens > 5000
        if first >= MIN_PARTIAL_TOKENS:
            assert list(prompt.chain) == of_tokens(ROOT, range(first))
        else:
            assert list(prompt.chain) == of_text(ROOT, chat(LONG * 20).prompt[1:-1])
        assert prompt.late and not prompt.counted
        slow.go.set()


class BusyThreads(VirtualLoop):
    """Time is virtual, and work in another thread takes 300 ms, as the tokenising of 128,000 tokens does."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self._late = lambda: 0.0
        self.in_threads = 0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.in_threads += 1
        future = self.create_future()
        self.call_later(0.3, lambda: future.done() or future.set_result(func(*args)))
        return future


@pytest.mark.req("ROUTERS-21")
@pytest.mark.parametrize("words", [8_000, 128_000])
def test_a_prompt_whose_tokenizer_takes_long_is_waited_for_20_ms_and_none_of_it_is_tokenised_on_the_loop(
    words: int, vocabulary: ModelVocabulary
) -> None:
    """The router and the limits share the 20 ms: a count that follows a reading waits for the rest of them, here for none."""
    loop = BusyThreads()
    long = chat("is " * words)
    vocabulary.count = None  # type: ignore[assignment, method-assign]  # nobody is to call it on the loop
    began = loop.time()
    reads = Prompts({"chat": vocabulary}, ThreadPoolExecutor(1), loop)
    prompt = loop.run_until_complete(reads.read(long, "chat", ROOT, SCOPE))
    read_at = loop.time()
    counts = PromptCounts({"chat": vocabulary}, ThreadPoolExecutor(1), loop)
    counted = loop.run_until_complete(counts.count(long, "chat", SCOPE, wait_s=max(0.0, BUDGET_S - (read_at - began))))
    assert (prompt.late, prompt.counted, counted, loop.in_threads) == (True, False, None, 2)
    assert read_at - began == pytest.approx(0.02)
    assert loop.time() - began == pytest.approx(0.02)
    loop.close()


@pytest.mark.req("ROUTERS-22")
async def test_a_prompt_of_100000_tokens_is_parsed_once_and_costs_as_few_calls_as_a_short_one(
    record_property: Callable[[str, object], None],
) -> None:
    """From the body to the router's prompt. Calls are counted, not time: the same on every machine. None of the prompt is hashed before
    the index is asked, and then as far as the index knows it."""
    counted = dict[int, Counter[str]]()
    for words in (8_000, 100_000):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "wide " * words}]}).encode()
        with prompts() as reads:
            for calls in (Counter[str](), Counter[str]()):  # the first time more is made, and remembered
                before = sys.getprofile()
                sys.setprofile(
                    lambda _frame, event, what, calls=calls: calls.update((event, f"{event} {getattr(what, '__qualname__', '')}"))
                )
                prompt = await reads.read(interpret(Endpoint.CHAT, body), "chat", ROOT, SCOPE)
                sys.setprofile(before)
                counted[words] = calls
        assert isinstance(prompt.chain, LazyChain)
        assert prompt.chain.hashed == 0
        index = PrefixIndex(1000)
        index.stored("gpu-0", of_text(ROOT, LONG.encode()))
        assert index.match(prompt.chain, 0.0).held("gpu-0") == 0
        assert prompt.chain.hashed <= STRIDE
    record_property("figure", f"{counted[100_000]['call']} calls at 100,000 tokens, {counted[8_000]['call']} at 8,000")
    assert [calls["c_call Decoder.decode"] for calls in counted.values()] == [1, 1]
    assert counted[100_000]["call"] <= 100
    assert counted[100_000]["c_call"] <= 250


@pytest.mark.req("ROUTERS-14")
async def test_the_same_prompt_many_times_at_once_is_tokenised_once() -> None:
    slow = Slow(10)
    with prompts(slow, budget_s=0.5) as reads:
        got = await asyncio.gather(*[reads.read(chat(LONG * 20), "chat", ROOT, SCOPE) for _ in range(32)])
        assert slow.calls == 1
        assert {tuple(one.chain) for one in got} == {tuple(got[0].chain)}
        slow.go.set()
        async with asyncio.timeout(HANG_S):
            while reads._under_way:
                await asyncio.sleep(0)
        assert (await reads.read(chat(LONG * 20), "chat", ROOT, "bolt")).counted
        assert slow.calls == 2


async def test_a_count_for_limits_is_the_one_that_was_made(vocabulary: ModelVocabulary) -> None:
    with prompts(vocabulary) as reads:
        prompt = await reads.read(chat(LONG), "chat", ROOT, SCOPE)
        vocabulary.count = None  # type: ignore[assignment, method-assign]  # nobody is to call it
        assert (prompt.counted, prompt.tokens) == (True, 403)


async def test_what_is_not_shared_has_no_chain() -> None:
    with prompts() as reads:
        prompt = await reads.read(ask(Endpoint.EMBEDDINGS, input=LONG), "chat", ROOT, SCOPE)
        assert (len(prompt.chain), prompt.tokens > 300) == (0, True)


async def test_a_guessed_vocabulary_gives_blocks_and_never_a_count(vocabulary: ModelVocabulary) -> None:
    """The hold of a request is lowered by `Prompt.counted` and by `PromptCounts` alone."""
    chat = ask(messages=[{"role": "user", "content": "sea ship " * 2000}])
    with prompts(vocabulary) as configured, prompts(guessed={"chat": vocabulary}) as guessing:
        known = await configured.read(chat, "chat", ROOT, SCOPE, wait_s=HANG_S)
        guess = await guessing.read(chat, "chat", ROOT, SCOPE, wait_s=HANG_S)
    assert (known.counted, guess.counted, guessing.tokens_of("chat")) == (True, False, True)
    assert (list(guess.chain), guess.block_tokens) == (list(known.chain), known.block_tokens)
    assert len(guess.chain) > 10
