"""As many end users as there may be, and room again when one's time is over."""

import random

from tenancy.expiry import EndUsers

HOUR_US = 3_600_000_000


def test_never_more_than_there_may_be_whoever_comes() -> None:
    users, rng, now_us = EndUsers(), random.Random(1), 10**15
    until_us: dict[str, int] = {}
    for _ in range(5_000):
        now_us += rng.randrange(HOUR_US // 20)
        label, keep_us = f"u{rng.randrange(60)}", rng.choice([HOUR_US, 24 * HOUR_US])
        alive = {one for one, until in until_us.items() if until > now_us}
        crowded = users.crowded_out(label, 20, now_us)
        assert crowded is (label not in alive and len(alive) >= 20)
        if not crowded:
            users.keep(label, keep_us, now_us)
            if until_us.get(label, 0) - now_us < keep_us / 2:
                until_us[label] = now_us + keep_us
        assert len(users) <= 20


def test_for_ever_stays_exact() -> None:
    users = EndUsers()
    users.keep("ann", 2**53 - 1, 10**15)
    assert not users.crowded_out("ann", 1, 2**53 - 2)
    assert users.crowded_out("bob", 1, 2**53 - 2)
