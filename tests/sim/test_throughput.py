"""What an engine gets done behind a gateway and without one, on virtual time: the gateway's own work takes no time there, so what is lost
is lost because the gateway held a request back while the engine had room for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from backends.simengine.settings import SimSettings
from tests.world.callers import MODEL, Manners, send
from tests.world.engines import PORT
from tests.world.neighbours import BEGINS_S, KEYS, NAMES, Neighbours, WholeAnswer
from tests.world.plan import Coming
from tests.world.world import BEGAN_S

ENGINE: Final = "e0"
SLOTS: Final = 16
WARM_S: Final = 40.0
"""The gateway learns meanwhile how many requests the engine takes at once."""
MEASURED_S: Final = 60.0


class Closed(Neighbours):
    """Callers of twenty tenants, each of which asks again as soon as its answer is there.

    Args:
        direct: they ask the engine, past the gateway.
        callers: how many at once.
    """

    def __init__(self, run_dir: Path, *, direct: bool, callers: int) -> None:
        self.direct = direct
        comings = [Coming(BEGINS_S + 0.01 * at, at, NAMES[at % len(NAMES)], "g0", Manners()) for at in range(callers)]
        sim = SimSettings(models=(MODEL,), speed=0.25, preset="h100-8b", max_num_seqs=SLOTS)
        super().__init__(run_dir, (ENGINE,), sim, comings, WARM_S + MEASURED_S)

    async def _ask(self, one: Coming) -> None:
        turn = 0
        while self.loop.now - BEGAN_S < self.until_s:
            manners = Manners(max_tokens=20 + 20 * ((one.number + turn) % 5))
            ask = WholeAnswer(1000 * turn + one.number, one.tenant, KEYS[one.tenant].text, f"{one.number} {turn}", manners)
            self.asks.append(ask)
            if self.direct:
                await send(ask, ENGINE, self.loop, PORT)
            else:
                await send(ask, one.gateway, self.loop)
            turn += 1

    def tokens_s(self) -> float:
        """Tokens of whole answers per second, once it is warm."""
        begins, ends = BEGAN_S + BEGINS_S + WARM_S, BEGAN_S + self.until_s
        return sum(one.manners.max_tokens for one in self.asks if one.whole and begins <= one.ended_at < ends) / MEASURED_S


@pytest.mark.slow
@pytest.mark.req("GATEWAYS-14")
@pytest.mark.parametrize("callers", [SLOTS // 2, SLOTS, 2 * SLOTS])
def test_an_engine_gets_as_much_done_behind_the_gateway_as_without_it(
    callers: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    direct, through = (tmp_path / name for name in ("direct", "through"))
    direct.mkdir()
    through.mkdir()
    without = Closed(direct, direct=True, callers=callers)
    behind = Closed(through, direct=False, callers=callers)
    assert {one.status for one in behind.asks if one.over} == {200}
    loss = 1 - behind.tokens_s() / without.tokens_s()
    record_property("figure", f"{callers} callers: {without.tokens_s():.0f} tokens/s direct, {loss:+.1%} lost behind the gateway")
    assert loss < 0.02
