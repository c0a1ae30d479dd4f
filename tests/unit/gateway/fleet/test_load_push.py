import pytest

from backends.reach import Reach, networks_of
from domain.membership import LoadPush
from gateway.fleet.load_push import push_refusal

REACH = Reach(networks_of(["10.0.0.0/8"]), frozenset({8081}))


@pytest.mark.req("R40")
@pytest.mark.parametrize(
    ("endpoint", "ranks", "refused"),
    [
        ("tcp://10.0.0.1:5559", 8, False),
        ("tcp://engine.example:5559", 1, True),
        ("tcp://192.0.2.1:5559", 1, True),
        ("tcp://169.254.169.254:80", 1, True),
    ],
)
def test_what_somebody_else_may_name(endpoint: str, ranks: int, refused: bool) -> None:
    assert bool(push_refusal(LoadPush(endpoint, ranks), REACH)) is refused


@pytest.mark.req("R40")
def test_every_rank_is_judged() -> None:
    local = Reach(networks_of(["127.0.0.0/8"]), frozenset({5562}))
    assert push_refusal(LoadPush("tcp://127.0.0.1:5559", 3), local) == ""
    assert push_refusal(LoadPush("tcp://127.0.0.1:5559", 4), local).startswith("tcp://127.0.0.1:5562 ")
