"""`python -m bench.tokens [--sessions FILE]`: what the router needs of a prompt, and what it costs to know it.

- `ms_turn`: CPU of one more turn of a conversation, from the checked request to ids and chain, by the conversation's length. `whole`
  tokenises the rendered prompt anew, `pieces` what is new of it.
- `us_bytes`: the same without a tokenizer: the prompt's bytes and their whole chain; `first miss` stops where the index does, which
  knows nothing of the prompt.
- `loop_share`: what CPU the event loop gets while a prompt of 128k tokens is tokenised in a thread, as a share of that. A library
  that keeps the interpreter's lock leaves it next to nothing.
- `ms_call`: mean CPU per call of real agent sessions, in the order in which they were made (LMCache's agent traces: lines with `session`,
  `timestamp` and `input`; a message is what an input adds to the one before it).

The tokenizer is a byte-level BPE of 16,384 tokens, trained on the standard library's sources, with a ChatML template. Subjects take turns;
figures are medians over the rounds.
"""

import argparse
import asyncio
import gzip
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.results_file import Row, machine, refresh, rows_of, table, write_rows
from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt.text import prompt_bytes
from gateway.prompt.vocabulary import ModelVocabulary, TokenReading
from routing.prefix.chain import BLOCK_BYTES, BLOCK_TOKENS, LazyChain, of_text, of_tokens
from routing.prefix.index import PrefixIndex

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURN_CHARS = 2000
TOKENS = (8, 32, 128)
"""Thousands of tokens before the turn that is measured."""

Measured = dict[tuple[str, str, str], list[float]]


def trained(folder: Path) -> ModelVocabulary:
    """Tokenizer and template in files, read as a pool's are."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_384,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(sources(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return ModelVocabulary(folder, time.strftime)


def sources() -> list[str]:
    return sorted(str(path) for path in Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def ask(texts: list[str]) -> Ask:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    return interpret(Endpoint.CHAT, msgspec.json.encode({"model": "m", "messages": messages, "temperature": 0.2, "stream": True}))


def cpu_ms(work: Callable[[], object], times: int = 1) -> float:
    began = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - began) * 1e3 / times


def whole(vocabulary: ModelVocabulary, one: Ask) -> list[int]:
    """As the counts of earlier releases: render, and tokenise all of it."""
    assert vocabulary._template is not None
    text = vocabulary._template.render(msgspec.json.decode(one.fields))
    return of_tokens(1, vocabulary._pieces._encode(text))


def pieces(vocabulary: ModelVocabulary, one: Ask, scope: str) -> list[int]:
    reading = TokenReading()
    vocabulary.read(one, scope, reading)
    return list(LazyChain(1, reading.ids().tobytes(), 4 * BLOCK_TOKENS))


def turns(vocabulary: ModelVocabulary, into: Measured, round_: int) -> None:
    """One more turn of conversations of several lengths; what was said differs in every round."""
    text = "".join(Path(name).read_text("utf-8", "replace") for name in sources())
    for thousands in TOKENS:
        _turn(vocabulary, into, round_, thousands, text)


def _turn(vocabulary: ModelVocabulary, into: Measured, round_: int, thousands: int, text: str) -> None:
    said = [text[at : at + TURN_CHARS] for at in range(round_ * 997, round_ * 997 + thousands * 3400, TURN_CHARS)]
    before, after = ask(said[:-1]), ask(said)
    pieces(vocabulary, before, f"acme-{round_}")
    assert whole(vocabulary, after) == pieces(vocabulary, after, f"check-{round_}")
    name = f"ms_turn:{thousands}k"
    into.setdefault((name, "whole", "ms"), []).append(cpu_ms(lambda: whole(vocabulary, after)))
    into.setdefault((name, "pieces", "ms"), []).append(cpu_ms(lambda: pieces(vocabulary, after, f"acme-{round_}")))
    index = PrefixIndex(1000)
    index.stored("gpu-0", [1])
    name = f"us_bytes:{thousands}k"
    into.setdefault((name, "whole", "us"), []).append(1e3 * cpu_ms(lambda: of_text(1, prompt_bytes(after).text), 50))
    lazy = 1e3 * cpu_ms(lambda: index.match(LazyChain(1, prompt_bytes(after).text, BLOCK_BYTES), 0.0), 50)
    into.setdefault((name, "first miss", "us"), []).append(lazy)


async def beside(vocabulary: ModelVocabulary, into: Measured, round_: int) -> None:
    """What the loop gets done while a long prompt that nobody has sent before is tokenised."""
    text = "".join(Path(name).read_text("utf-8", "replace") for name in sources())
    one = ask([text[round_ * 991 : round_ * 991 + 128 * 3400]])
    content = msgspec.json.decode(one.fields)["messages"][0]["content"]
    works: dict[str, Callable[[], object]] = {
        "whole": lambda: vocabulary._pieces._tokenizer.encode(content).ids,
        "pieces": lambda: vocabulary.read(one, f"beside-{round_}", TokenReading()),
    }
    with ThreadPoolExecutor(1) as executor:
        for subject, work in works.items():
            began = time.thread_time()
            working = asyncio.get_running_loop().run_in_executor(executor, cpu_ms, work)
            while not working.done():
                await asyncio.sleep(0)
            got_ms = (time.thread_time() - began) * 1e3
            into.setdefault(("loop_share:128k", subject, ""), []).append(got_ms / working.result())


def calls(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The calls of real sessions as messages, in order of time."""
    with gzip.open(path, "rt") as file:
        lines = sorted(map(json.loads, file), key=lambda line: line["timestamp"])
    said: dict[str, list[str]] = {}
    for line in lines:
        before = said.get(line["session"], [])
        whole_before = "".join(before)
        grown = before and line["input"].startswith(whole_before)
        said[line["session"]] = [*before, line["input"][len(whole_before) :]] if grown else [line["input"]]
        yield line["session"], [text for text in said[line["session"]] if text]


def sessions(vocabulary: ModelVocabulary, path: Path, into: Measured, round_: int) -> None:
    """Every call of real agent sessions."""
    spent, many = {"whole": 0.0, "pieces": 0.0}, 0
    for session, texts in calls(path):
        if texts:
            one, many = ask(texts), many + 1
            spent["pieces"] += cpu_ms(partial(pieces, vocabulary, one, f"{round_}-{session}"))
            spent["whole"] += cpu_ms(partial(whole, vocabulary, one))
    for subject, ms in spent.items():
        into.setdefault(("ms_call:sessions", subject, "ms"), []).append(ms / many)


def main() -> None:
    """Measure, write the rows and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=Path, help="agent sessions with text, .jsonl.gz")
    given = parser.parse_args()
    into: Measured = {}
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = trained(Path(folder))
        for round_ in range(given.rounds):
            turns(vocabulary, into, round_)
            asyncio.run(beside(vocabulary, into, round_))
            if given.sessions is not None:
                sessions(vocabulary, given.sessions, into, round_)
    rows: list[Row] = rows_of(into)
    write_rows("tokens", rows)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    refresh("tokens", f"{table(rows, metrics, 'whole')}\n\n{given.rounds} rounds on {machine()}.")
    print(table(rows, metrics, "whole"))


if __name__ == "__main__":
    main()
