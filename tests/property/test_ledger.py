"""The books balance: holds of the in-process ledger under every interleaving of opening and closing."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from domain.identity import TenantId
from domain.usage import Usage
from tenancy.hold import RELEASED, Amounts, Hold, estimated, settled
from tenancy.stores.memory import MemoryLedger

TENANTS = [TenantId("a"), TenantId("b")]
operations = st.lists(
    st.tuples(st.sampled_from(["reserve", "settle", "estimate", "release"]), st.integers(0, 6), st.integers(0, 50), st.integers(0, 50)),
    max_size=60,
)


@given(operations)
def test_books_balance_after_any_history(history: list[tuple[str, int, int, int]]) -> None:
    async def play() -> None:
        ledger = MemoryLedger()
        held: dict[str, Hold] = {}
        used = dict.fromkeys(TENANTS, 0)
        for word, n, prompt, output in history:
            hold = held.get(str(n)) or Hold(str(n), TENANTS[n % 2], Amounts(prompt, output))
            if word == "reserve":
                await ledger.reserve(hold)
                held[hold.id] = hold
                continue
            usage = hold.counted(output) if word == "estimate" else Usage(prompt, output)
            closing = {"settle": settled(usage), "estimate": estimated(usage), "release": RELEASED}[word]
            await ledger.close(hold, closing)
            await ledger.close(hold, settled(Usage(10**6, 10**6)))  # a second closing changes nothing
            if held.pop(hold.id, None) is not None:
                used[hold.tenant] += closing.usage.total_tokens
        assert ledger.open_holds == len(held)
        for tenant in TENANTS:
            totals = ledger.totals(tenant)
            mine = [h for h in held.values() if h.tenant == tenant]
            assert (totals.open_holds, totals.held_tokens) == (len(mine), sum(h.amounts.tokens for h in mine))
            assert totals.used_tokens == used[tenant]

    asyncio.run(play())


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 5000))
def test_an_estimate_never_exceeds_what_was_held(prompt: int, output: int, counted: int) -> None:
    hold = Hold("x", TENANTS[0], Amounts(prompt, output))
    assert hold.counted(counted).total_tokens <= hold.amounts.tokens
