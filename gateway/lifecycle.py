"""The life of one inference request, in order. `docs/explanation/life_of_a_request.md` tells the same story with its failure edges.

Each line is a step with a file of its name in `gateway/request/`; it is handed the Story and `Deps`, and writes its own slice of the
Story. Streaming and plain requests take the same way: `forward` joins the engine's socket to the caller's through the reply chain and
returns when the reply is over.

Why this order: the key is checked before the body is read, so strangers cannot make us read; tokens are held before a
backend is chosen, so a request that may not run never reaches the router, nor waits for its turn; what would wait in vain is refused
before either, because in an overload that is most of them; and whatever happens, the hold is closed exactly once and the request leaves
one Record. Where the tenant's policy names fallback models, the steps after `interpret` are done again for the next model, with a hold
of its own.

Two capabilities that are still to come each have one place here. An **answer cache** looks an answer up between `admit` and `choose`. A hit
skips the steps from there to `settle`: a `ReplyRelay` with the source `FROM_MEMORY` (`gateway/http/edge/relay.py`) is fed `on_head`,
`on_data` and `on_end` with the stored reply, and carries it to the caller as if an engine had sent it. The recorder is a tap that
`taps_for` (`gateway/http/edge/taps.py`) appends to the reply chain; it stores the reply when its `end` is called without a `fault` in the
chain. An **output guardrail** is such a tap too; an input guardrail is a step after `interpret`, before anything is held.

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
from gateway.request.holds import OpenHold
from gateway.request.interpret import interpret
from gateway.request.settle import defect, open_story, record, refuse, settle
from gateway.rollouts.shadow import mirror


async def serve(exchange: Exchange, endpoint: Endpoint, deps: Deps) -> None:
    """Everything that happens to one request. Never raises a Fault: each one is answered and recorded here."""
    story = open_story(exchange, deps)
    hold: OpenHold | None = None
    try:
        caller = await authenticate(exchange, story, deps)  # 401
        ask, rule, grant = await interpret(endpoint, exchange, caller, story, deps)  # 400, 403, 404, 408, 413, 415
        while True:
            try:
                ask, rule = look_ahead(ask, rule, grant, exchange, story, deps)  # 400, 503
                ask, hold = await admit(caller, ask, rule, grant, story, deps)  # 400, 429
                if story.asked.dealt is not None:
                    mirror(ask, rule, exchange, story, deps)  # a copy for a canary in its shadow phase
                placement = await choose(ask, rule, exchange, story, deps)  # 503; waits here where nobody has room
                while not await forward(ask, placement, exchange, story, deps):  # 502, 503, 504; failing over before the first byte only
                    placement = await choose_again(ask, placement, exchange, story, deps)  # it was preempted, or no engine could be reached
                break
            except Fault as fault:
                ask, rule, story = fall_back(fault, grant, exchange, story, deps)  # the fault, where no other model may answer
                await release_hold(hold, deps)
                hold = None
    except Fault as fault:
        refuse(fault, exchange, story, deps)
    except Exception as error:  # noqa: BLE001 - the last resort: a defect of ours answers 500 and is logged, never hangs
        refuse(defect(error, story, deps), exchange, story, deps)
    finally:
        try:
            await settle(hold, story, deps)
        finally:
            record(exchange, story, deps)  # cancelled or not
