"""Limits by command: a mistyped id or amount is refused with what to write, and money is written and read in dollars."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import app
from gateway.cli.admin_client import AdminClient
from gateway.cli.key_labels import key_labels
from gateway.cli.limits import _rows
from tenancy.limits import Level, Meter, Scope, Window, public_id, state_key
from tests.admin_harness import TOKEN
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("tenant:acme:tokens:dya", "day"),
        ("tenant:acme:token:day", "input_tokens"),
        ("tennant:acme:tokens:day", "tenant"),
        ("tenant:acme:tokens", "level:name:meter:window"),
    ],
)
def test_a_mistyped_id_is_told_with_what_there_is(limit: str, says: str) -> None:
    for command in (["set", limit, "5"], ["delete", limit, "--yes"], ["raise", limit, "7"]):
        done = Commands().invoke(app, ["limit", *command, "--admin", "http://127.0.0.1:9"])
        assert done.exit_code == 2
        assert says in done.output


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("meter", Meter)
def test_ids_that_can_be_pass(level: Level, meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_ADMIN_TOKEN", "t" * 24)
    window = Window.NOW if meter is Meter.CONCURRENT_REQUESTS else Window.DAY
    place = (Scope(level, "" if level is Level.GLOBAL else "acme/web"), meter, window)
    for limit, amount in ((public_id(*place), "5"), (state_key(*place), "500000000" if meter is Meter.COST_NANOUSD else "5")):
        done = Commands().invoke(app, ["limit", "set", limit, amount, "--admin", "http://127.0.0.1:9"])
        assert (done.exit_code, "http://127.0.0.1:9" in done.stderr) == (1, True), "nobody is there to ask"


def test_a_soft_threshold_above_the_amount_is_refused_with_the_reason(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        refused = port.run("limit", "set", "tenant:acme:requests:day", "10", "--soft", "11")
        assert (refused.exit_code, "soft 11: above the amount, 10" in refused.stderr) == (1, True)
        assert port.run("limit", "set", "tenant:acme:requests:day", "10", "--soft", "10").exit_code == 0


def test_a_limit_that_cannot_be_found_is_named(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        for words, named in (
            (("set", "tenant:acmee:cost_usd:day", "5"), "tenant 'acmee'"),
            (("raise", "tenant:acme:cost_usd:day", "5"), "limit 'tenant:acme:cost_usd:day'"),
            (("delete", "tenant:acme:tokens:day", "--yes"), "limit 'tenant:acme:tokens:day'"),
        ):
            refused = port.run("limit", *words)
            said = " ".join(refused.stderr.split())
            assert (refused.exit_code, f"There is no {named}" in said) == (1, True), said


def test_a_rolling_window_is_set_shown_raised_and_deleted(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        month, week = (f"tenant:acme:cost_usd:rolling-{days}d" for days in (30, 7))
        for limit in (month, week):
            done = port.run("limit", "set", limit, "50")
            assert (done.exit_code, done.stdout.strip()) == (0, f"limit {limit} is $50.00")
        raised = port.run("limit", "raise", month, "60", "--for", "999d")
        assert (raised.exit_code, raised.stderr) == (0, "")
        assert port.run("limit", "delete", week, "--yes").exit_code == 0
        listed = port.run("limit", "list", "--csv").stdout
        assert (month in listed, week in listed) == (True, False)
        for wrong in ("rolling-0d", "rolling-367d", "rolling-030d", "rolling", "rolling-d", "rolling-1d:x"):
            refused = port.run("limit", "set", f"tenant:acme:cost_usd:{wrong}", "50")
            assert (refused.exit_code, "rolling-Nd" in refused.stderr or wrong.endswith("x")) == (2, True), wrong
        refused = port.run("limit", "set", month, "50", "--zone", "Europe/Berlin")
        assert (refused.exit_code, "only limits per day, week or month" in refused.stderr) == (1, True)


def test_a_time_zone_is_set_kept_and_told_when_it_is_none(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        port.run("tenant", "create", "acme")
        done = port.run("limit", "set", "tenant:acme:cost_usd:week", "50", "--zone", "Europe/Berlin")
        assert (done.exit_code, done.stdout.strip()) == (0, "limit tenant:acme:cost_usd:week is $50.00, in the calendar of Europe/Berlin")
        assert "Europe/Berlin" in port.run("limit", "list", "--csv").stdout
        assert port.run("limit", "raise", "tenant:acme:cost_usd:week", "60", "--for", "999d").exit_code == 0, "a raise keeps the zone"
        assert "Europe/Berlin" in port.run("limit", "list", "--csv").stdout
        for window, zone, says in (
            ("day", "Europe/Belrin", "zone 'Europe/Belrin' is no time zone; did you mean Europe/Berlin?"),
            ("hour", "Europe/Berlin", "only limits per day, week or month have a time zone"),
        ):
            refused = port.run("limit", "set", f"tenant:acme:tokens:{window}", "5", "--zone", zone)
            assert (refused.exit_code, says in " ".join(refused.stderr.split())) == (1, True), refused.stderr
            assert "?." not in refused.stderr
        assert port.run("limit", "set", "tenant:acme:tokens:hour", "5").exit_code == 0
        assert port.run("limit", "set", "tenant:acme:tokens:day", "5", "--zone", "UTC").exit_code == 0


BUDGET = "tenant:acme:cost_usd:month"
ALIAS = "tenant:acme:cost_nanousd:month"


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        made.run("tenant", "create", "acme")
        yield made


def amounts(port: AdminSocket) -> dict[str, tuple[int, str | None]]:
    return {one["id"]: (one["amount"], one["amount_usd"]) for one in port.json("limit", "list")}


def test_a_bare_number_of_money_is_dollars_and_amounts_are_shown_with_a_dollar_sign(port: AdminSocket) -> None:
    done = port.run("limit", "set", BUDGET, "50", "--soft", "40.5")
    assert (done.exit_code, done.stdout) == (0, f"limit {BUDGET} is $50.00, soft $40.50\n")
    assert amounts(port) == {BUDGET: (50 * 10**9, "50.00")}
    raised = port.run("limit", "raise", BUDGET, "75.25", "--for", "999d")
    assert raised.stdout == f"limit {BUDGET} is $75.25 for 999d, and $50.00 afterwards\n"
    listed = port.run("limit", "list").stdout
    assert all(text in listed for text in ("$50.00", "$40.50", "$75.25"))
    assert "000000000" not in listed
    assert port.run("limit", "delete", BUDGET, "--yes").exit_code == 0
    assert amounts(port) == {}


@pytest.mark.parametrize("amount", ["$50", "50.00", "50", "50.000000000"])
def test_one_amount_has_several_spellings(port: AdminSocket, amount: str) -> None:
    assert port.run("limit", "set", BUDGET, amount).exit_code == 0
    assert amounts(port)[BUDGET] == (50 * 10**9, "50.00")


@pytest.mark.parametrize(
    ("limit", "amount", "says"),
    [
        (BUDGET, "0", ["AMOUNT", "$0.00", "every request", "without the dollar sign", "--yes"]),
        (BUDGET, "0.00000005", ["AMOUNT", "$0.00000005", "$0.01", "dollars", "--yes"]),
        (BUDGET, "0.009999999", ["$0.009999999", "$0.01", "--yes"]),
        (ALIAS, "50", ["AMOUNT", "$0.00000005", "cost_usd", "--yes"]),
        ("tenant:acme:requests:day", "00", ["AMOUNT", "every request", "--yes"]),
    ],
)
def test_nothing_and_amounts_that_are_hardly_meant_need_a_yes(port: AdminSocket, limit: str, amount: str, says: list[str]) -> None:
    refused = port.run("limit", "set", limit, amount)
    assert refused.exit_code == 2
    assert all(text in refused.stderr for text in says), refused.stderr
    assert amounts(port) == {}
    assert port.run("limit", "set", limit, amount, "--yes").exit_code == 0
    assert len(amounts(port)) == 1


def test_one_cent_is_the_smallest_budget_that_passes_unasked(port: AdminSocket) -> None:
    assert port.run("limit", "set", BUDGET, "0.01").exit_code == 0
    refused = port.run("limit", "set", BUDGET, "5", "--soft", "0.001")
    assert (refused.exit_code, "--soft" in refused.stderr) == (2, True)
    assert "which warns in the reply to nearly every request" in refused.stderr


def test_a_change_keeps_what_it_does_not_name(port: AdminSocket) -> None:
    week = "tenant:acme:cost_usd:week"
    port.run("limit", "set", week, "50", "--soft", "40.5", "--zone", "Europe/Berlin")
    port.run("limit", "raise", week, "75", "--for", "999d")
    done = port.run("limit", "set", week, "60")
    said = f"limit {week} is $60.00, soft $40.50, in the calendar of Europe/Berlin, raised to $75.00 until "
    assert (done.exit_code, done.stdout.startswith(said), done.stderr) == (0, True, "")
    done = port.run("limit", "set", week, "80", "--soft", "none", "--zone", "UTC")
    assert (done.stdout, done.stderr) == (f"limit {week} is $80.00\n", "note: the raise to $75.00 has ended: the amount is no less now\n")
    port.run("limit", "set", week, "80", "--soft", "70")
    done = port.run("limit", "set", week, "60")
    assert done.stdout == f"limit {week} is $60.00\n"
    assert done.stderr == "note: the soft threshold, $70.00, is above $60.00 and was taken away; --soft sets another\n"

    minute = "tenant:acme:requests:minute"
    assert port.run("limit", "set", minute, "60", "--burst", "20", "--soft", "10").stdout == f"limit {minute} is 60, burst 20, soft 10\n"
    assert port.run("limit", "set", minute, "600").stdout == f"limit {minute} is 600, burst 20, soft 10\n"
    assert port.run("limit", "set", minute, "600", "--burst", "5").stdout == f"limit {minute} is 600, burst 5\n"
    assert port.run("limit", "set", minute, "600", "--burst", "none").stdout == f"limit {minute} is 600\n"


def test_the_reset_of_a_limit_is_a_duration_and_empty_where_nothing_is_used() -> None:
    states = [
        {"id": "tenant:acme:requests:month", "used": used, "reset_s": reset_s} for used, reset_s in ((3, 1_048_600.0), (3, 0.4), (0, 9.0))
    ]
    assert [row["reset"] for row in _rows(states, {})] == ["12d 3h", "1s", ""]


def test_the_older_name_takes_nano_dollars_and_is_told_apart(port: AdminSocket) -> None:
    done = port.run("limit", "set", ALIAS, "50000000000")
    assert (done.exit_code, done.stdout) == (0, f"limit {BUDGET} is $50.00\n")
    assert f"write {BUDGET} and dollars" in done.stderr
    assert amounts(port) == {BUDGET: (50 * 10**9, "50.00")}
    assert port.run("limit", "set", ALIAS, "$51").exit_code == 0
    assert amounts(port) == {BUDGET: (51 * 10**9, "51.00")}
    assert port.run("limit", "delete", ALIAS, "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("limit", "options", "says"),
    [
        (BUDGET, [""], ["AMOUNT", "empty"]),
        (BUDGET, ["nan"], ["AMOUNT", "'nan'"]),
        (BUDGET, ["1e3"], ["AMOUNT", "'1e3'"]),
        (BUDGET, ["--", "-5"], ["AMOUNT", "not negative"]),
        (BUDGET, ["5", "--soft", "-1"], ["--soft", "not negative"]),
        (BUDGET, ["2000000"], ["AMOUNT", "$2000000.00", "$1000000.00"]),
        (BUDGET, ["0.0000000001"], ["AMOUNT", "digits after the point"]),
        (BUDGET, ["5", "--burst", "5"], ["burst"]),
        (BUDGET, ["5", "--soft", "6"], ["soft $6.00", "$5.00"]),
        ("tenant:acme:requests:day", ["$500"], ["AMOUNT", "'$500'", "whole number"]),
        ("tenant:acme:requests:day", ["1.5"], ["AMOUNT", "'1.5'", "whole number"]),
        ("tenant:acme:requests:day", ["9" * 5000], ["AMOUNT", "whole number"]),
    ],
)
def test_what_is_no_amount_is_refused_with_the_name_of_the_option(
    port: AdminSocket, limit: str, options: list[str], says: list[str]
) -> None:
    done = Commands().invoke(
        app, ["limit", "set", "--admin", port.url, limit, *options], env={"TIDEGATE_ADMIN_TOKEN": TOKEN, "COLUMNS": "200"}
    )
    assert done.exit_code in (1, 2)
    assert all(text in done.stderr for text in says), done.stderr
    assert amounts(port) == {}


def test_the_limits_of_keys_show_the_keys_labels_to_people(port: AdminSocket) -> None:
    key_id = port.json("key", "create", "--tenant", "acme", "--label", "website")["id"]
    unnamed = port.json("key", "create", "--tenant", "acme")["id"]
    labels = key_labels(AdminClient(port.url, TOKEN, quiet=True), ["acme", "nobody"])
    assert labels == {key_id: "website"}
    states = [{"id": f"key:{one}:requests:minute", "amount": 5, "used": 0} for one in (key_id, unnamed)]
    assert [row["id"] for row in _rows(states, labels)] == [f"key:{key_id}:requests:minute (website)", f"key:{unnamed}:requests:minute"]


def test_alerts_of_an_unknown_limit_are_an_error_and_none_so_far_is_said(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        assert port.run("tenant", "create", "acme").exit_code == 0
        assert port.run("limit", "set", "tenant:acme:cost_usd:month", "50").exit_code == 0
        refused = port.run("limit", "alerts", "--of", "UNKNOWN")
        said = " ".join(refused.stderr.split())
        assert (refused.exit_code, "no limit has an id that begins with 'UNKNOWN'" in said, refused.stdout) == (1, True, "")
        quiet = port.run("limit", "alerts", "--of", "tenant:acme:")
        assert (quiet.exit_code, "no budget has reached a threshold so far" in quiet.stderr) == (0, True)
        assert port.run("limit", "alerts", "--of", "tenant:acme:", "--json").stdout.strip() == "[]"


def test_a_forecast_says_what_a_budget_will_have_spent_and_when_there_is_no_budget(tmp_path: Path) -> None:
    with admin_socket(tmp_path) as port:
        assert port.run("tenant", "create", "acme").exit_code == 0
        none = port.run("limit", "forecast", "acme")
        assert (none.exit_code, "no limit of the meter cost_usd" in none.stderr) == (0, True)
        assert port.run("limit", "set", "tenant:acme:cost_usd:month", "50").exit_code == 0
        shown = json.loads(port.run("limit", "forecast", "acme", "--json").stdout)
        amounts = [(one["id"], one["amount_usd"], one["pace_per_day_usd"]) for one in shown]
        assert amounts == [("tenant:acme:cost_usd:month", "50.00", "0.00")]
        assert "$50.00" in port.run("limit", "forecast", "acme").stdout
