"""The fault table: what goes wrong around a gateway, and the figure that its tests hold it to.

A test says by `@pytest.mark.fault("slow drip")` which row it holds; it stands in `tests/fault`, or where the rest of its subject is.
`make test-faults` runs them all with these figures and prints what was found; `make test` runs them in a short form.
"""

from collections.abc import Mapping
from typing import Final

ROWS: Final[Mapping[str, str]] = {
    # engines
    "crash mid-stream": "500 kills: 500 error events within 100 ms of the cut, 0 [DONE]; cut at every byte: 0 that look whole",
    "accepts, never answers": "one of three frozen: out within 30 s, at most 1 % of the requests of 5 minutes fail",
    "slow drip": "a byte in 10 s, comments for ever, or less than a token a second: ended at the limit within 1 s; others do not notice",
    "engine aborts": "4 variants, 50 times each: all are error events",
    "5xx burst": "one of three at 50 %: 99 % of a minute's requests succeed; all three: at most 1.25 attempts for each request",
    "reset before headers": "1,000 resets: every request in the ledger once, with the tokens that its caller got",
    "malformed stream": "1,000,000 damaged answers are judged the same however they are cut; split at every byte: the same text",
    "half-open connection": "an engine that vanished without a FIN: its requests are freed within 35 s",
    "wrong model": "200 requests on a swapped model, streamed and plain: 0 answers of it",
    "restart with an empty cache": "p99 of the time to the first token: at most twice as long, and as before within 60 s",
    "DNS change": "a new address is used within 10 s, 0 cut streams; SERVFAIL changes nothing for 10 minutes",
    "rolling upgrade": "4 of 4 engines rolled under load: 0 failed requests",
    # callers
    "caller leaves": "500 that leave: engines are told within 200 ms of each, within 1 s of all at once; 0 holds left",
    "slow reader": "500 at 1 KiB/s: memory grows by at most 150 MiB, others are served, all are cut",
    "slow or idle sockets": "5,000 slow and 10,000 idle ones: every request of a good caller succeeds, the slow get a 408, at most 500 MiB",
    "flood of one address": "1,000 connections at once, 20 allowed: others' requests all succeed, at most 40 are open",
    "giant body": "1 GiB in chunks: 413, at most 16 MiB more memory, the loop held for 50 ms at most",
    "compression bomb": "10 GiB: 413, not read whole, at most 16 MiB more memory; 5 GiB, which is: unpacked to the limit, at most 32 MiB",
    "chunk flood": "1,000,000 chunks of a byte, endless extensions and trailers: 413, at most 16 MiB more memory",
    "deep or doubtful JSON": "depth, doubled keys, bad UTF-8, odd numbers: 400 within 5 ms",
    "smuggling": "60 raw vectors: 400 and closed, no two sides disagree",
    "header injection": "what callers send beside their body reaches no engine",
    "expensive parameters": "50 vectors: 400 before an engine is called",
    # stores, time and processes
    "counter store away": "5 minutes: 99.9 % of requests answered, who asks it waits no longer; limits as in docs/reference/stores.md",
    "counter store slow": "+2 s: nobody waits more than 60 ms in the first second, and nobody after it",
    "counter store fails over": "primary killed under load: limits overshot by the writes that were not replicated + 5 % at most",
    "split brain": "both sides together at most twice the limit, exact within 10 s of healing",
    "database away": "10 minutes at 200 requests/s: none fails, 0 rows lost or doubled, admin writes 503",
    "database slow": "every answer 5 s late, at 200 requests/s: none fails or waits, 0 rows lost or doubled",
    "disk full": "money is refused with 503 at once, nothing else notices, 0 rows lost",
    "clock wrong": "one gateway 5 minutes ahead: exactly the limit is admitted, no lease ends early",
    "SIGTERM": "200 streams: 0 cut within the grace, unready within 100 ms, exit 0, ledger complete",
    "killed process": "its slots are back within 20 s; 90 % of what it delivered is billed, never more",
    "restart under load": "20 rolling and 20 whole ones, broken files between: 0 connections refused, 0 requests lost, 0 streams cut",
    "upgrade of gateways": "3 of the release before are replaced under load: 0 requests lost, 0 streams cut, a ledger row for each answer",
}
"""Row -> figure, in the order in which they are printed."""
