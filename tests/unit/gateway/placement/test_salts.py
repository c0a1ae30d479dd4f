from backends.lora.residency import Adapter
from gateway.placement.salts import MAX_KNOWN, Salted, root_of, salted
from routing.fleet import Pool

SECRET = b"s" * 32


def pool(name: str = "chat", model: str = "m", revision: str = "1") -> Pool:
    return Pool(name, model, revision, "vllm", ())


def test_the_root_follows_the_salt_and_separates_what_engines_separate() -> None:
    known: dict[tuple[str, str, str], Salted] = {}
    adapter = Adapter("bot", "d" * 64, "/a")
    made = [
        salted(known, SECRET, "acme", pool(), None),
        salted(known, SECRET, "bolt", pool(), None),
        salted(known, SECRET, "acme", pool("other", revision="2"), None),
        salted(known, SECRET, "acme", pool(), adapter),
    ]
    assert len({one.salt for one in made}) == len({one.root for one in made}) == 4
    assert made[0].root == root_of("m", "1", "", made[0].salt, SECRET), "what an engine's event of that salt begins with"
    assert salted(known, SECRET, "acme", pool(), None) is made[0]
    assert len(known) == 4


def test_what_is_kept_is_bounded_and_comes_out_the_same_again() -> None:
    some = Salted("salt", 1)
    known = {(f"tenant-{at}", "chat", ""): some for at in range(MAX_KNOWN - 1)}
    first = salted(known, SECRET, "acme", pool(), None)
    salted(known, SECRET, "bolt", pool(), None)
    assert len(known) == 1
    assert salted(known, SECRET, "acme", pool(), None) == first
