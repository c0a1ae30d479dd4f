"""The life of one inference request, in order. `docs/explanation/life_of_a_request.md` tells the same story with its failure edges.

Each line is a step with a file of its name in `gateway/request/`; it is handed the Story and `Deps`, and writes its own slice of the
Story. Streaming and plain requests take the same way: `forward` joins the engine's socket to the caller's through the reply chain and
returns when the reply is over.

Why this order: the key is checked before the body is read, so strangers cannot make us read; tokens are held before a
backend is chosen, so a request that may not run never reaches the router, nor waits for its turn; what would wait in vain is refused
before either, because in an overload that is most of them; and whatever happens, the hold is closed exactly once and the request leaves
one Record. Where the tenant's policy names fallback models, the steps after `interpret` are done again for the next model, with a hold
of its own.

The answer cache (`look_up`) stands between `admit` and whatever needs an engine: a hit skips the steps from there to `settle`. A miss that
may be kept writes to a flight instead of its own exchange, which equal requests can join, and which records the reply.

A Response in the background is answered behind `admit` (`run_in_background`), and the rest of the steps write to an exchange without a
caller.

The end of a Response that is to be stored is held back by the exchange until `keep_response` has stored it, whichever step made the reply.

Guard rules look at the request (`guard_input`) before anything else sees its prompt, and at the answer in a tap of the reply chain
(`taps_for` in `gateway/http/edge/taps.py`). Detectors that run elsewhere answer while the request waits; those that block are joined before
it is sent.

The life of a process is `gateway/process/worker.py` (start) and `gateway/process/drain.py` (SIGTERM).
"""

from domain.ask import Endpoint
from domain.faults import Fault
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.request.admit import admit
from gateway.request.authenticate import authenticate
from gateway.request.choose import choose, choose_again, look_ahead
from gateway.request.fallback import fall_back, release_hold
from gateway.request.forward import forward
from gateway.request.guard_input import guard_input, join_guards, leave_guards
from gateway.request.holds import OpenHold
from gateway.request.interpret import interpret
from gateway.request.look_up import keep, land, look_up
from gateway.request.response_state import keep_response
from gateway.request.run_in_background import run_in_background
from gateway.request.settle import defect, open_story, record, refuse, settle
from gateway.rollouts.shadow import mirror


async def serve(exchange: Exchange, endpoint: Endpoint, deps: Deps) -> None:
    """Everything that happens to one request. Never raises a Fault: each one is answered and recorded here."""
    story = open_story(exchange, deps)
    hold: OpenHold | None = None
    try:
        caller = await authenticate(exchange, story, deps)  # 401
        ask, rule, grant = await interpret(endpoint, exchange, caller, story, deps)  # 400, 403, 404, 408, 413, 415; 503
        while True:
            try:
                ask, rule = look_ahead(ask, rule, grant, exchange, story, deps)  # 400, 503
                ask, hold = await admit(caller, ask, rule, grant, story, deps)  # 400, 429
                if exchange.to_background:
                    exchange = await run_in_background(
                        exchange, caller, story, deps
                    )  # 429, 503; the caller is answered, and the rest is kept
                if story.asked.guards is not None:
                    ask = await guard_input(ask, story, deps)  # 400, 503; what comes after it sees the text as the rules let it pass
                ask, to = await look_up(ask, rule, exchange, story, deps)  # answered from the cache, or 503 at last; 504
                if to is None:
                    break
                if story.asked.dealt is not None:
                    await join_guards(story)  # 400, 503
                    mirror(ask, rule, exchange, story, deps)  # a copy for a canary in its shadow phase
                placement = await choose(ask, rule, to, story, deps)  # 503; waits here where nobody has room
                if story.guarded.judging is not None:
                    await join_guards(story, placement)  # 400, 503
                while not await forward(ask, placement, to, story, deps):  # 502, 503, 504; failing over before the first byte only
                    placement = await choose_again(ask, placement, to, story, deps)  # preempted, or no engine or slot was free
                await keep(ask, story, deps)
                land(story, deps, None)
                break
            except Fault as fault:
                leave_guards(story)
                land(story, deps, fault)
                ask, rule, story = fall_back(fault, grant, exchange, story, deps)  # the fault, where no other model may answer
                await release_hold(hold, deps)
                hold = None
        if exchange.unsent is not None:
            await keep_response(exchange, story, deps)  # 429, 503; the end of a reply that tells of a stored Response waits for it
    except Fault as fault:
        refuse(fault, exchange, story, deps)
    except Exception as error:  # noqa: BLE001 - the last resort: a defect of ours answers 500 and is logged, never hangs
        refuse(defect(error, story, deps), exchange, story, deps)
    finally:
        leave_guards(story)
        land(story, deps, None)
        try:
            await settle(hold, story, deps)
        finally:
            record(exchange, story, deps)  # cancelled or not
