"""Ends running answers whose key is no longer valid, where the policy says `end_revoked` (R34: within 30 seconds), and realtime sessions in
any case.

The worker's sweep calls `RevokedAnswers.sweep`. It looks at the running answers when another directory has come, and now and then for keys
that expire; so it costs nothing while nothing changes. A request that still waits in a queue is ended at the first look after its call.
"""

from typing import Final

from domain.faults import Fault, Kind
from gateway.answers.flights import Receiver
from gateway.deps import Deps
from gateway.http.edge.prefill_leg import PrefillLeg
from gateway.http.edge.relay import ReplyRelay
from gateway.story import Story
from tenancy.directory import Directory

EVERY_S: Final = 10.0
"""Seconds between two looks at the same directory. A revoked key is known within 5 s, so its answers end within 15."""
MESSAGE: Final = "The API key was revoked or disabled, or it expired, while the answer was running."


class RevokedAnswers:
    """The running answers of one worker whose callers have lost their access."""

    def __init__(self) -> None:
        self._seen: Directory | None = None
        self._next_at = 0.0

    def sweep(self, now: float, deps: Deps) -> None:
        """End the answers of callers that are no longer valid, if a look is due."""
        directory = deps.live.directory
        if directory is self._seen and now < self._next_at:
            return
        self._seen = directory
        self._next_at = now + EVERY_S
        now_unix = deps.wall()
        for relay in deps.watch.relays():
            if isinstance(relay, PrefillLeg | Receiver) or relay.over:
                continue
            if ends(relay.story, directory, now_unix, always=not isinstance(relay, ReplyRelay)):
                relay.end_with(Fault(Kind.KEY_REVOKED, MESSAGE))


def ends(story: Story, directory: Directory, now_unix: float, *, always: bool = False) -> bool:
    """Whether this answer is ended because its caller's key, or the project of its token, is no longer valid.

    Args:
        always: whether it is ended whatever the policy says: a realtime session could go on for an hour.
    """
    caller, policy = story.asked.caller, story.asked.tenant_policy
    if caller is None or policy is None or not (always or policy.end_revoked):
        return False
    if caller.by_token:
        return directory.for_tenant(caller.tenant, caller.project, now_unix) is None
    return not directory.keys.is_valid(caller.key_id, now_unix)
