"""`tidegate scaling`: the recommendation over the admin API."""

from pathlib import Path

from tests.admin_socket import admin_socket


def test_the_recommendation_is_told_in_words(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        shown = port.run("scaling")
        assert shown.exit_code == 0, shown.output
        assert "the pool has no backend" in shown.stdout
        chat, bare, *_ = port.json("scaling")
        assert (chat["pool"], chat["present"], chat["wanted"]) == ("chat", 0, 2)
        assert bare["wanted"] is None
