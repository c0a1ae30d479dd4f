"""`tidegate top`: the fleet and the tenants, live in a terminal, or once for a script."""

import contextlib
import io
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import typer
from rich.live import Live

from gateway.cli.admin_client import API, AdminClient
from gateway.cli.backends import fleet_of
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import seconds_of
from gateway.cli.printing import AsJson, fail, out, print_json
from gateway.cli.top_figures import Figures, Look, View, figures, look, screen

EVERY: Final = "2s"
"""Between two looks: each costs the gateway one scrape."""
WARNINGS_EVERY_S: Final = 10.0
"""Between two readings of what needs a look, which ask the database."""
MAX_NOTES: Final = 4


class _Gateway:
    """Looks at a gateway, and remembers the last figures while it does not answer."""

    def __init__(self, options: GatewayOptions) -> None:
        self._public = options.public()
        self._api: AdminClient | None = options.api_or_none()
        self._warnings: tuple[str, ...] = ()
        self._warned_at_s = -WARNINGS_EVERY_S

    def look(self) -> Look:
        """One look; ends the command where nobody answers."""
        page = self._public.get("/metrics").decode(errors="replace")
        try:
            return look(time.monotonic(), fleet_of(self._public), page)
        except ValueError:
            fail(f"{self._public.where} does not answer like the admin port of a gateway of this version")

    def notes(self, seen: Figures) -> tuple[str, ...]:
        """What needs a look, in words: engines that are out, and with a token what the gateway itself says."""
        now_s = time.monotonic()
        if self._api is not None and now_s - self._warned_at_s >= WARNINGS_EVERY_S:
            self._warned_at_s = now_s
            with contextlib.suppress(typer.Exit):
                self._warnings = tuple(self._api.read(f"{API}/gateway")["warnings"])
        out_of_use = [f"{backend['backend']}: {backend['why']}" for backend in seen["fleet"] if backend["why"]]
        return (*self._warnings, *out_of_use)


def top(
    gateway: GatewayOptions,
    every: Annotated[
        str, typer.Option(metavar="DURATION", help="Between two looks; each costs the gateway one scrape of its metrics.")
    ] = EVERY,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, of two looks, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the fleet and the tenants live: load, tokens, cost, and what is left of limits.

    Keys: q quits, s sorts by the next column, r turns the order round, v shows the fleet, the tenants or both, p pauses. With --json a line
    of JSON for each look, and with --once the first one alone. Rates are of the time between two looks.
    """
    every_s = seconds_of("--every", every, 0.2)
    source = _Gateway(gateway)
    if once or as_json:
        _print(source, every_s, once, as_json)
        return
    if not (sys.stdin.isatty() and out.is_terminal):
        fail("top draws on a terminal; for a script: --once, or --json", code=2)
    _draw(source, every_s)


def _print(source: _Gateway, every_s: float, once: bool, as_json: bool) -> None:
    before = source.look()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(every_s)
            now = source.look()
            seen = figures(before, now)
            notes = source.notes(seen)
            if as_json:
                print_json({**seen, "warnings": notes, "over_s": now.at_s - before.at_s})
            else:
                out.print(screen(seen, View(notes=notes), out.width, None))
            if once:
                return
            before = now


def _draw(source: _Gateway, every_s: float) -> None:
    """Draw until the reader quits."""
    view = View()
    before = source.look()
    seen = figures(before, before)
    next_s = time.monotonic() + every_s
    with _keys() as key, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(seen, view, out.width, out.height), refresh=True)
            pressed = key(None if view.paused else max(next_s - time.monotonic(), 0))
            if pressed in ("q", "Q", "\x1b", "\x03", "\x04"):
                return
            _obey(pressed, view)
            if view.paused or time.monotonic() < next_s:
                continue
            next_s = time.monotonic() + every_s
            with contextlib.redirect_stderr(io.StringIO()) as said:
                try:
                    now = source.look()
                    seen = figures(before, now)
                    view.notes = source.notes(seen)[:MAX_NOTES]
                    before = now
                except typer.Exit:
                    view.notes = (f"no answer, these are the last figures: {' '.join(said.getvalue().split())}",)


def _obey(pressed: str, view: View) -> None:
    match pressed:
        case "s":
            view.next_sort()
        case "r":
            view.reverse = not view.reverse
        case "v" | "\t":
            view.next_tables()
        case "p" | " ":
            view.paused = not view.paused


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float | None], str]]:
    """Yields a function that reads one key without Enter, waiting for so many seconds or without end: empty when none was pressed. The end
    of the input counts as the key that quits. When the block ends, the terminal is as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed(within_s: float | None) -> str:
        if not select.select([descriptor], [], [], within_s)[0]:
            return ""
        return os.read(descriptor, 1).decode(errors="replace") or "q"

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
