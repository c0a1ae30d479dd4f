"""`python -m backends.simengine`: a simulated engine from the command line."""

import argparse
import asyncio
import contextlib
import signal
import sys

import uvloop

from backends.simengine.faults import FAULTS, parse_rule
from backends.simengine.server import SimEngine
from backends.simengine.settings import DIALECTS, PRESETS, SimSettings


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments and run the engine; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="simengine", description="An engine without a GPU.", epilog=f"faults: {', '.join(FAULTS)}", allow_abbrev=False
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--model", action="append", metavar="NAME", help="name it serves; repeat for more")
    parser.add_argument("--dialect", choices=DIALECTS, default="vllm")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="h100-8b", help="timing of a real machine")
    parser.add_argument("--speed", type=float, default=1.0, help="10 is ten times faster")
    parser.add_argument("--block-size", type=int, default=16, help="tokens per KV block")
    parser.add_argument("--kv-tokens", type=int, help="KV capacity in tokens; default: the preset's")
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--max-queued", type=int, help="requests beyond which it answers 503")
    parser.add_argument("--max-loras", type=int, default=0, help="adapters it can hold; 0 for an engine without")
    parser.add_argument("--lora", action="append", default=[], metavar="NAME", help="adapter it has from the start; repeat for more")
    parser.add_argument("--lora-load-s", type=float, default=0.0, help="seconds that loading an adapter takes")
    parser.add_argument("--api-key", help="key it wants on inference routes")
    parser.add_argument("--reasoning", action="store_true", help="reason before answering chats, unless a request turns it off")
    parser.add_argument(
        "--guard",
        action="append",
        default=[],
        metavar="WORD=CATEGORY",
        help="answer chats as Llama Guard does: unsafe with the category where the last message has the word; repeat for more",
    )
    parser.add_argument(
        "--judge",
        action="append",
        default=[],
        metavar="WORD=SCORE",
        help="answer the questions of Tidegate's judge: the score, 1 to 5, where an answer has the word, else 5; repeat for more",
    )
    parser.add_argument("--seed", type=int, default=0, help="of its texts and of faults with a probability")
    parser.add_argument("--kv-events", metavar="ENDPOINT", help="publish KV events there, for instance tcp://*:5557")
    parser.add_argument("--kv-replay", metavar="ENDPOINT", help="answer replay requests there, for instance tcp://*:5558")
    parser.add_argument("--kv-buffer", type=int, default=10_000, help="batches of KV events kept for replays")
    parser.add_argument("--load-push", metavar="ENDPOINT", help="push the load there, for instance tcp://*:5559; dialect sglang")
    parser.add_argument("--role", choices=("both", "prefill", "decode"), default="both", help="half of requests it serves; dialect sglang")
    parser.add_argument("--transfer-tokens-s", type=float, default=400_000.0, help="tokens of KV a second that others fetch from it")
    parser.add_argument("--lease-s", type=float, default=30.0, help="seconds for which KV is kept that nobody fetches")
    parser.add_argument("--load-failure", choices=("recompute", "fail"), default="recompute", help="when KV cannot be fetched")
    parser.add_argument("--instant", action="store_true", help="answer at once, for measuring what stands in front")
    parser.add_argument("--event-rate", type=float, default=0.0, help="with --instant: events per second of each stream")
    parser.add_argument("--stamp", action="store_true", help="with --instant: events carry the sender's clock")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME[:key=value,...]", help="standing fault; see docs/reference/simengine.md"
    )
    options = parser.parse_args(arguments)
    try:
        settings = SimSettings(
            models=tuple(options.model or ("tide-sim-8b",)),
            dialect=options.dialect,
            preset=options.preset,
            speed=options.speed,
            host=options.host,
            port=options.port,
            block_size=options.block_size,
            kv_tokens=options.kv_tokens,
            max_num_seqs=options.max_num_seqs,
            max_model_len=options.max_model_len,
            max_queued=options.max_queued,
            max_loras=options.max_loras,
            loras=tuple(options.lora),
            lora_load_s=options.lora_load_s,
            api_key=options.api_key,
            instant=options.instant,
            event_rate=options.event_rate,
            stamp=options.stamp,
            reasoning=options.reasoning,
            guard=dict(_word_and_category(text) for text in options.guard),
            judge=dict(_word_and_score(text) for text in options.judge),
            seed=options.seed,
            kv_events=options.kv_events,
            kv_replay=options.kv_replay,
            kv_buffer=options.kv_buffer,
            load_push=options.load_push,
            role=options.role,
            transfer_tokens_s=options.transfer_tokens_s,
            lease_s=options.lease_s,
            load_failure=options.load_failure,
            faults=tuple(parse_rule(text) for text in options.fault),
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        run(settings)
    except OSError as error:
        print(f"simengine: cannot listen on {settings.host}:{settings.port}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _word_and_category(text: str) -> tuple[str, str]:
    """Raises ValueError."""
    word, separator, category = text.rpartition("=")
    if not separator:
        raise ValueError(f"--guard {text!r} must be WORD=CATEGORY, for instance bomb=S9")
    return word, category


def _word_and_score(text: str) -> tuple[str, int]:
    """Raises ValueError."""
    word, separator, score = text.rpartition("=")
    if not separator or score not in "12345" or len(score) != 1:
        raise ValueError(f"--judge {text!r} must be WORD=SCORE, for instance maybe=2")
    return word, int(score)


def run(settings: SimSettings) -> None:
    """Serve until SIGTERM or SIGINT; running answers are finished first (at most 30 s)."""

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        async with SimEngine(settings) as engine:
            print(f"simengine listening on {engine.url}", flush=True)
            await stop.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(engine.drained(), 30)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    sys.exit(main())
