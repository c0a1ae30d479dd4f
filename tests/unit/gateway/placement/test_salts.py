from gateway.placement.salts import MAX_KNOWN, Salted, Salts, root_of

SECRET = b"s" * 32
DIGEST = "d" * 64


def test_the_root_follows_the_salt_and_separates_what_engines_separate() -> None:
    salts = Salts(SECRET)
    made = [salts["acme", "m", "1", ""], salts["bolt", "m", "1", ""], salts["acme", "m", "2", ""], salts["acme", "m", "1", DIGEST]]
    assert len({one.salt for one in made}) == len({one.root for one in made}) == 4
    assert made[0].root == root_of("m", "1", "", made[0].salt, SECRET), "what an engine's event of that salt begins with"
    assert salts["acme", "m", "1", ""] is made[0]
    assert len(salts) == 4


def test_what_is_kept_is_bounded_and_comes_out_the_same_again() -> None:
    salts = Salts(SECRET)
    salts.update({(f"tenant-{at}", "m", "1", ""): Salted("salt", 1) for at in range(MAX_KNOWN - 1)})
    first = salts["acme", "m", "1", ""]
    assert len(salts) == MAX_KNOWN
    salts["bolt", "m", "1", ""]
    assert len(salts) == 1
    assert salts["acme", "m", "1", ""] == first
