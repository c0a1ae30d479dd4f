"""Names that policies and the database do not share, and that nothing refuses: tenants that have a policy and do not exist, and models that
have a price and no policy.

A policy may be written before its tenant is made, and a price before its model is allowed, so an unknown name is a note. Where the database
or the policies cannot be read, nothing is said.

What reads them is imported when it is needed: most commands with this note ask a gateway elsewhere.
"""

import asyncio
import time
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config.addresses import sqlite_file
from policies.yaml.problems import ConfigError, Problem
from tenancy.directory_ports import MAX_PAGE
from tenancy.journal import JournalAway

if TYPE_CHECKING:
    from gateway.config.settings import Settings
    from policies.compile import PolicySet


def unknown_tenants(policies: "PolicySet", settings: "Settings") -> list[Problem]:
    """A note with file and line for each tenant that has a policy and does not exist; empty where the database cannot be read.

    A SQLite file that does not exist yet is left so.
    """
    from tenancy.stores.sql import StoreError

    file = sqlite_file(settings.sql_url)
    if not policies.by_tenant or (file and not Path(file).exists()):
        return []
    try:
        known = asyncio.run(_tenants(settings.sql_url))
    except (StoreError, JournalAway):
        return []
    notes = []
    for tenant in policies.by_tenant:
        if tenant not in known:
            near = get_close_matches(tenant, known, n=1)
            hint = (f"did you mean {near[0]!r}? " if near else "") + f"`tidegate tenant create {tenant}` makes it"
            notes.append(policies.places[tenant].problem(("tenant",), f"there is no tenant {tenant!r} in the database", hint))
    return notes


def unknown_model(model: str, config: Path) -> str | None:
    """A note on a model that no policy of this settings file names; None for one that is named, and where the policies cannot be read."""
    if not config.exists():
        return None
    from gateway.config.load import load_settings
    from policies.load import MAX_NAMED, load_policies

    try:
        settings = load_settings(config)
        known = load_policies(settings.policies_dir, None).models()
    except ConfigError:
        return None
    if model in known:
        return None
    near = get_close_matches(model, known, n=1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"they have: {', '.join(known[:MAX_NAMED]) or 'none'}{', …' * (len(known) > MAX_NAMED)}"
    )
    return f"no policy of {config} has a model {model!r}, so nobody pays this price; {hint}"


async def _tenants(url: str) -> set[str]:
    """The names of all tenants. Raises StoreError, JournalAway."""
    from gateway.wiring.admin import StoreTransactions
    from tenancy.stores.sql import SqlJournal, open_engine

    engine = open_engine(url)
    names: set[str] = set()
    try:
        async with StoreTransactions(SqlJournal(engine, time.time)).reading() as directory:
            while page := await directory.tenants.page(None, max(names, default=""), MAX_PAGE):
                names |= {tenant.name for tenant in page}
    finally:
        await engine.dispose()
    return names
