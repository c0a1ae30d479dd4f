"""The process's log: JSON lines without secrets, whoever wrote them."""

import io
import json
import logging
import random
import string
from collections.abc import Callable, Iterator

import pytest
import structlog

from gateway.telemetry.logs import MAX_TEXT_CHARS, configure_logs, redact_text, write_for_people


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logs("info", stream, worker=3)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def parsed(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_level_time_and_fields(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("started", port=8000)
    structlog.get_logger("x").debug("not shown")
    (line,) = parsed(lines)
    assert line.pop("timestamp")
    assert line == {"worker": 3, "event": "started", "port": 8000, "level": "info"}


def test_libraries_are_heard_too_and_tracebacks_are_one_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("bad Authorization: Bearer abcdef.ghijkl")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("failed for %s", "10.0.0.1")
    (line,) = parsed(lines)
    assert line["event"] == "failed for 10.0.0.1"
    assert "ValueError" in str(line["exception"])
    assert "ghijkl" not in lines.getvalue()


def test_urls_that_the_gateway_fetches_are_not_logged(lines: io.StringIO) -> None:
    """httpx logs each request with its URL, and the URL of an image may be a signed one."""
    logging.getLogger("httpx").info("HTTP Request: GET http://93.184.216.34/a.png?sig=abc")
    logging.getLogger("httpcore.connection").info("connect_tcp")
    assert lines.getvalue() == ""


@pytest.mark.req("R37")
def test_no_part_of_a_secret_is_left_at_the_cut_of_a_long_text(lines: io.StringIO) -> None:
    """The text is searched before it is cut: the first half of a password has nothing by which it could be recognised."""
    for before in range(MAX_TEXT_CHARS - 60, MAX_TEXT_CHARS, 3):
        structlog.get_logger("x").info("m", text="x" * before + " postgresql://tidegate:correcthorse@db " + "y" * 60)
    shown = [str(line["text"]) for line in parsed(lines)]
    assert [len(text) for text in shown] == [MAX_TEXT_CHARS] * 20
    assert [text[-60:] for text in shown if "corr" in text] == []


@pytest.mark.req("R37")
def test_two_hundred_canaries_never_come_out(lines: io.StringIO) -> None:
    rng = random.Random(37)
    log = structlog.get_logger("x")
    canaries = []
    for at in range(200):
        secret = "".join(rng.choices(string.ascii_letters + string.digits, k=43))
        canaries.append(secret)
        key = f"gw_live_abcdefghij_{secret}123456"
        ways: list[Callable[[str, str], None]] = [
            lambda k, s: log.info(f"refused {k} from 10.0.0.1"),
            lambda k, s: log.info("head", headers={"Authorization": f"Bearer {s}", "X-Api-Key": s, "Cookie": f"a={s}"}),
            lambda k, s: log.info("head", headers=[f"authorization: Basic {s}", f"x-api-key: {s}"]),
            lambda k, s: log.info("config", store={"password": s, "url": f"redis://user:{s}@10.0.0.1/0"}),
            lambda k, s: log.warning("openai", value=f"sk-{s}"),
            lambda k, s: log.info("raw", body=f'{{"authorization": "Bearer {s}"}}'.encode()),
            lambda k, s: logging.getLogger("lib").warning("sent %s", k),
            lambda k, s: log.info("nested", a={"b": {"c": [{"d": {"e": s}}]}}),
            lambda k, s: log.info("misspelt key", value=f"gw_{s}"),
            lambda k, s: log.info("cut", text="x" * (MAX_TEXT_CHARS - 20) + k),
        ]
        ways[at % len(ways)](key, secret)
    assert len(parsed(lines)) == 200
    assert [secret for secret in canaries if secret in lines.getvalue() or secret[:12] in lines.getvalue()] == []


def test_the_public_id_of_a_key_and_token_counts_stay_readable(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("gw_live_abcdefghij_" + "s" * 49, prompt_tokens=12, key_id="abcdefghij")
    (line,) = parsed(lines)
    assert line["event"] == "gw_live_abcdefghij_[redacted]"
    assert (line["prompt_tokens"], line["key_id"]) == (12, "abcdefghij")


@pytest.mark.req("R39")
def test_one_event_is_one_line_without_hidden_characters(lines: io.StringIO) -> None:
    structlog.get_logger("x").info("a\r\nb\x1b[31m\u202e\u2028\x9b", **{"k\n": {"odd\u202e": object}})
    assert len(lines.getvalue().splitlines()) == 1
    assert not {"\x1b", "\u202e", "\u2028", "\x9b"} & set(lines.getvalue())


def test_long_and_deep_values_are_cut(lines: io.StringIO) -> None:
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    structlog.get_logger("x").info("big", text="x" * 10**6, many=list(range(10**4)), deep=deep)
    assert len(lines.getvalue()) < 2 * MAX_TEXT_CHARS


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of debug, info, warning, error"):
        configure_logs("loud")


def test_plain_words_are_left_alone() -> None:
    for text in ("worker 3 ready", "http://127.0.0.1:8000/v1", "basic", "sk-1", "task-list-of-things"):
        assert redact_text(text) == text


def test_tokens_are_redacted_wherever_they_stand() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlc2lnbmF0dXJl"
    assert redact_text(f"refused {token} from 10.0.0.1") == "refused [redacted] from 10.0.0.1"
    assert redact_text(f'{{"t":"{token[:-4]}"}}') == '{"t":"[redacted]"}'


def test_for_people_a_line_is_no_json_and_has_no_secret_either(lines: io.StringIO) -> None:
    stream = io.StringIO()
    write_for_people(True)
    try:
        configure_logs("info", stream, worker=3)
    finally:
        write_for_people(False)
    structlog.get_logger("people").warning("hello", authorization="Bearer abc", pool="chat")
    (line,) = stream.getvalue().splitlines()
    assert not line.startswith("{")
    assert all(word in line for word in ("hello", "warning", "pool=chat", "worker=3", "authorization=[redacted]"))
    assert "abc" not in line
