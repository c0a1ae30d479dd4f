"""ETags and If-Match: no caller overwrites a state that he has not seen."""

from hashlib import sha256
from typing import Any

from gateway.http.admin_api.problem import CHANGED, Problem
from tenancy.audit import canonical


def etag_of(shown: Any) -> str:
    """The strong entity tag of a shown resource: the same content has the same tag, in every process."""
    return f'"{sha256(canonical(shown).encode()).hexdigest()[:32]}"'


def check_match(if_match: str | None, shown: Any) -> None:
    """Raises Problem 428 without a tag and 412 with an old one."""
    if not if_match:
        raise Problem(
            428, "precondition_required", "Send If-Match with the ETag of what you have seen (GET it first), or If-Match: *.", "if-match"
        )
    tags = [tag.strip() for tag in if_match.split(",")]
    if "*" not in tags and etag_of(shown) not in tags:
        raise Problem(412, "precondition_failed", CHANGED, "if-match")
