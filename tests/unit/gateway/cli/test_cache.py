"""`tidegate cache`: figures and purges over the admin API."""

import json
from pathlib import Path

from tests.admin_socket import admin_socket


def test_a_purge_says_what_it_removes_and_figures_are_shown(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        done = port.run("cache", "purge", "--tenant", "acme", "--model", "m", "--before", "2026-01-01", "--yes")
        assert (done.exit_code, done.stdout.strip()) == (
            0,
            "kept answers of tenant acme, model m, before 2026-01-01 are removed within 5 s",
        ), done.output
        assert port.run("cache", "purge", "--group", "all", "--yes").exit_code == 0
        for wrong, words in (
            ((), "--tenant or --group"),
            (("--tenant", "acme", "--group", "all"), "--tenant or --group"),
            (("--tenant", "acme", "--before", "soon"), "--before"),
        ):
            refused = port.run("cache", "purge", *wrong, "--yes")
            assert (refused.exit_code, words in refused.stderr) == (2, True), refused.output
        unknown = port.run("cache", "purge", "--tenant", "nobody", "--yes")
        assert unknown.exit_code == 1
        (listed,) = port.json("cache", "list", "--tenant", "acme", "--model", "sim", "--limit", 5)
        assert (listed["key"], listed["model"], listed["writer"], listed["bytes"]) == ("6b" * 32, "sim", "k1", 70)
        assert port.json("cache", "list", "--tenant", "acme", "--before", "1970-01-01T00:00:05Z") == []
        assert (port.run("cache", "list").exit_code, port.run("cache", "list", "--tenant", "nobody").exit_code) == (2, 1)
        stats = port.run("cache", "stats", "--json")
        assert (stats.exit_code, json.loads(stats.stdout)) == (0, []), stats.output
        wrong = port.json("cache", "wrong")
        assert [(one["owner"], one["wrong_rate"]) for one in wrong] == [("acme", 0.005), ("bolt", 0.045), ("group:all", 0.0)]
