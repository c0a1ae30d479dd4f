"""Whether guard rules read every route of the data port (R25). A worker that serves a route which they cannot read does not start.

Size: it is a check of its own, read where the routes are built, so that an endpoint to come cannot forget the guards.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Final

from domain.ask import Endpoint, EndpointFacts
from guardrails.messages import PROMPTS

READ_REPLIES: Final = frozenset({"choices"})
"""The members of a reply with what an engine has generated, which the guards' tap reads."""


class UnguardedRoute(Exception):
    """A route whose requests or answers no guard rule would read."""


def check_guarded(endpoints: Iterable[Endpoint | EndpointFacts]) -> None:
    """Refuse endpoints that guard rules cannot read.

    Raises:
        UnguardedRoute: names the path, the member and where to teach it.
    """
    for endpoint in endpoints:
        if endpoint.duplex:
            continue  # no rule reads its events, so `interpret` refuses its sessions wherever rules apply (`without_guards`)
        for member in chain(endpoint.prompt_fields, *endpoint.alternatives):
            if member not in PROMPTS:
                raise UnguardedRoute(f"no guard rule reads '{member}' of {endpoint.path}: guardrails/messages.py has to")
        if endpoint.generates and endpoint.reply_field not in READ_REPLIES:
            raise UnguardedRoute(f"no guard rule reads '{endpoint.reply_field}' of answers to {endpoint.path}: gateway/guards has to")
