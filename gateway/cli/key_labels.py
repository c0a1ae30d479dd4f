"""Labels of keys for tables that people read: an id says nothing to the person who named the key."""

from collections.abc import Iterable
from typing import Final

from gateway.cli.admin_client import API, AdminClient, RefusedByGateway, segment

MAX_TENANTS: Final = 20
"""Most tenants whose keys are asked for; a table with more of them shows the ids of the others alone."""
MAX_KEYS: Final = 2000
"""Most keys read of one tenant."""


def key_labels(client: AdminClient, tenants: Iterable[str]) -> dict[str, str]:
    """The labels of the tenants' keys by id; without keys that have none, and without tenants whose keys may not be read.

    Args:
        client: a quiet one, because a missing label is no failure of the command.
    """
    labels: dict[str, str] = {}
    for tenant in sorted(set(tenants))[:MAX_TENANTS]:
        try:
            keys = client.items(f"{API}/tenants/{segment(tenant)}/keys", MAX_KEYS)
        except RefusedByGateway:
            continue
        labels |= {key["id"]: key["label"] for key in keys if key.get("label")}
    return labels


def labelled(key_id: str, labels: dict[str, str]) -> str:
    """The id, with its label in brackets where there is one."""
    return f"{key_id} ({labels[key_id]})" if key_id in labels else key_id
