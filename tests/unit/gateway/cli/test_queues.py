"""`tidegate queue`: the queues over the admin API."""

from pathlib import Path

from tests.admin_socket import admin_socket


def test_the_next_request_is_told_in_words(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        shown = port.run("queue", "next", "--tokens", "900")
        assert shown.exit_code == 0, shown.output
        assert "refused: tenant_count" in shown.stdout
        assert "1.50 to 2.50" in shown.stdout
        (record,) = port.json("queue", "next")
        assert (record["pool"], record["tenant"], record["waiting"]) == ("chat", "acme", 3)
        assert port.run("queue", "next", "--tokens", "0").exit_code == 2
        assert port.json("queue", "refusals") == []
