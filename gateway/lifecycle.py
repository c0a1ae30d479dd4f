"""The life of one inference request, in order. `docs/life_of_a_request.md` tells the same story with its failure edges.

Each line is a step in `steps.py`; what a step needs is in its signature. Streaming and plain requests take the same way:
`forward` joins the engine's socket to the caller's through taps and returns when the reply is over.

Why this order: the key is checked before the body is read, so strangers cannot make us read; tokens are held before a
backend is chosen, so a request that may not run never reaches the router; and whatever happens, the hold is closed
exactly once and the request leaves one Record.
"""

from domain.ask import Endpoint
from domain.faults import Fault
from gateway.deps import Deps
from gateway.forward import forward
from gateway.http.edge.exchange import Exchange
from gateway.steps import admit, authenticate, choose, defect, interpret, open_story, record, refuse, settle
from tenancy.hold import Hold


async def serve(exchange: Exchange, endpoint: Endpoint, deps: Deps) -> None:
    """Everything that happens to one request. Never raises a Fault: each one is answered and recorded here."""
    story = open_story(exchange, deps)
    hold: Hold | None = None
    try:
        caller = authenticate(exchange, story, deps)  # 401
        ask, rule = await interpret(endpoint, exchange, caller, story, deps)  # 400, 404, 408, 413, 415
        hold = await admit(caller, ask, story, deps)
        pool, route = choose(ask, rule, story, deps)  # 503
        await forward(ask, rule, pool, route, exchange, story, deps)  # 502, 503, 504; failing over before the first byte only
    except Fault as fault:
        refuse(fault, exchange, story, deps)
    except Exception as error:  # noqa: BLE001 - the last resort: a defect of ours answers 500 and is logged, never hangs
        refuse(defect(error, story, deps), exchange, story, deps)
    finally:
        await settle(hold, story, deps)
        record(exchange, story, deps)
