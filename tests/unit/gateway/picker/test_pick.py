"""Laws of a pick: whom the router chooses and whom it may not, what is refused and how, and that the load is given back once."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from backends.health import Health
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead
from gateway.http.edge.taps import DONE
from gateway.picker.pick import EndpointPicker, endpoint_of, outcome_of, status_of, without_usage, written_endpoint
from gateway.placement.salts import Salts
from tests.placed import POOL
from tests.request_path import EVENT, LAST, Engine, Path

OK_HEAD: Mapping[bytes, bytes] = {b"content-type": b"text/event-stream", b"x-envoy-upstream-service-time": b"3"}
AT = {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000", "c": "fd00::3:8000"}


class Picking:
    """A worker with engines that have addresses, and its picker. Must be made inside a running loop."""

    def __init__(self, *ids: str, policy: Mapping[str, Any] | None = None, fallbacks: int = 0) -> None:
        self.path = Path(policy=policy, **{name: Engine() for name in ids or ("a", "b")})
        self.deps = self.path.deps
        self.deps.live.endpoints.update({name: AT[name] for name in ids or ("a", "b")})
        self.health = {name: Health(10.0) for name in ids or ("a", "b")}
        self.deps.live.health.update(self.health)
        self.outcomes: list[str] = []
        self.picker = EndpointPicker(self.deps, "acme", fallbacks, self.outcomes.append)

    async def pick(
        self,
        text: str = "hello",
        subset: set[str] | None = None,
        *,
        sees_answer: bool = False,
        headers: Mapping[bytes, bytes] | None = None,
        **fields: Any,
    ) -> Any:
        sent = {"model": "sim", "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
        return await self.picker.pick(head(headers), msgspec.json.encode(sent), subset, sees_answer=sees_answer)

    async def fault(self, *arguments: Any, **options: Any) -> Fault:
        with pytest.raises(Fault) as raised:
            await self.pick(*arguments, **options)
        return raised.value

    @property
    def in_flight(self) -> dict[str, int]:
        return self.path.in_flight()


def head(headers: Mapping[bytes, bytes] | None = None, path: str = "/v1/chat/completions", method: str = "POST") -> RequestHead:
    return RequestHead(method, path, {b"content-type": b"application/json", **(headers or {})}, None, chunked=False, keep_alive=True)


async def test_a_pick_counts_on_its_engine_until_the_end() -> None:
    world = Picking()
    pick = await world.pick()
    (chosen,) = [name for name, count in world.in_flight.items() if count]
    assert pick.endpoints == (AT[chosen],)
    pick.answered(200, OK_HEAD, "")
    assert sum(world.in_flight.values()) == 1
    pick.over()
    pick.over()
    pick.whole()
    assert sum(world.in_flight.values()) == 0


async def test_the_engine_gets_the_body_of_the_data_port_and_usage_only_where_it_is_asked_for() -> None:
    world = Picking()
    salt = Salts(world.deps.salt_secret)["acme", "sim", world.deps.live.fleet.pools[POOL].revision, ""].salt
    sent = json.loads((await world.pick(stream=True, kv_transfer_params={"x": 1})).body)
    assert sent == {
        "model": "sim",
        "cache_salt": salt,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "stream": True,
    }
    asked = json.loads((await world.pick(stream=True, stream_options={"include_usage": True})).body)
    assert asked["stream_options"] == {"include_usage": True}
    assert without_usage(b'{"stream_options":{"include_usage":true},"a":1}') == b'{"a":1}'


async def test_the_models_name_becomes_the_engines() -> None:
    world = Picking(policy={"models": [{"name": "public", "pool": POOL}]})
    assert json.loads((await world.pick(model="public")).body)["model"] == "sim"
    assert (await world.fault()).kind is Kind.MODEL_NOT_FOUND


async def test_prompts_with_the_same_beginning_go_to_the_same_engine_and_others_spread() -> None:
    world = Picking()
    first = (await world.pick("a long shared text " * 400)).endpoints
    for number in range(4):
        assert (await world.pick("a long shared text " * 400 + str(number))).endpoints == first
    world = Picking()
    picks = [await world.pick(f"{number} " * 2000) for number in range(12)]
    assert {pick.endpoints for pick in picks} == {(AT["a"],), (AT["b"],)}
    assert sorted(world.in_flight.values()) == [6, 6]


async def test_only_engines_of_the_subset_are_chosen() -> None:
    world = Picking("a", "b", "c")
    for _ in range(6):
        assert (await world.pick(subset={AT["b"]})).endpoints == (AT["b"],)
    assert (await world.pick(subset={AT["c"], "10.9.9.9:1"})).endpoints == ("[fd00::3]:8000",)
    for subset in (set(), {"10.9.9.9:1"}):
        assert (await world.fault(subset=subset)).kind is Kind.NO_BACKEND
    assert sum(world.in_flight.values()) == 7


async def test_an_engine_without_an_address_cannot_be_named() -> None:
    world = Picking()
    world.deps.live.endpoints["a"] = ""
    assert {(await world.pick()).endpoints for _ in range(4)} == {(AT["b"],)}


async def test_fallbacks_follow_the_choice_and_the_load_moves_with_the_proxy() -> None:
    world = Picking(fallbacks=3)
    pick = await world.pick()
    assert set(pick.endpoints) == {AT["a"], AT["b"]}
    first, second = [name for at in pick.endpoints for name in AT if AT[name] == at]
    assert world.in_flight[first] == 1
    pick.answered(200, OK_HEAD, pick.endpoints[1])
    assert world.in_flight == {first: 0, second: 1}
    pick.over()
    assert sum(world.in_flight.values()) == 0


async def test_the_lowest_class_is_shed_where_engines_are_full_and_others_are_told_to_come_back() -> None:
    world = Picking("a")
    world.deps.pool_states[POOL].load_table.set_limit("a", requests=1)
    await world.pick()
    shed = await world.fault(headers={b"x-tidegate-class": b"batch"})
    assert status_of(shed) == (429, "shed")
    late = await world.fault()
    assert (late.kind, status_of(late)) == (Kind.OVERLOADED, (503, "nobody"))
    assert late.retry.should


async def test_nobody_up_is_a_503() -> None:
    world = Picking("a")
    live = world.deps.live
    live.fleet = live.fleet.with_backends(POOL, ())
    fault = await world.fault()
    assert (fault.kind, status_of(fault)) == (Kind.NO_BACKEND, (0, "nobody"))


@pytest.mark.parametrize(
    ("policy", "request_", "words"),
    [
        ({"guards": {"rules": [{"id": "keys", "kind": "secrets", "mode": "block"}]}}, {}, "guard rules"),
        ({"models": [{"name": "sim", "pool": POOL, "lora": "x"}]}, {}, "adapter"),
        ({}, {"prompt": {"id": "greeting"}}, "registered prompt"),
        ({}, {"headers": {b"x-tidegate-prompt": b"greeting"}}, "registered prompt"),
        ({}, {"headers": {b"x-tidegate-guards": b"keys"}}, "guard rules"),
        ({}, {"guardrails": ["keys"]}, "guard rules"),
    ],
)
async def test_what_only_the_data_port_can_do_is_refused(policy: dict[str, Any], request_: dict[str, Any], words: str) -> None:
    fault = await Picking(policy=policy).fault(**request_)
    assert fault.kind is Kind.NOT_PERMITTED
    assert words in fault.message


@pytest.mark.parametrize(
    ("policy", "request_", "kind"),
    [
        ({"parameters": {"refused": ["seed"]}}, {"seed": 1}, Kind.NOT_PERMITTED),
        ({"parameters": {"at_most": {"n": 1}}}, {"n": 2}, Kind.INVALID_VALUE),
        ({"parameters": {"allowed": ["max_tokens"]}}, {"seed": 1}, Kind.NOT_PERMITTED),
        ({}, {"mm_processor_kwargs": {"x": 1}}, Kind.UNSUPPORTED_PARAMETER),
        ({"caps": {"body_bytes": 1024}}, {"text": "w" * 2000}, Kind.BODY_TOO_LARGE),
    ],
)
async def test_the_policys_parameters_count(policy: dict[str, Any], request_: dict[str, Any], kind: Kind) -> None:
    assert (await Picking(policy=policy).fault(**request_)).kind is kind


async def test_the_policys_defaults_reach_the_engine() -> None:
    assert json.loads((await Picking(policy={"parameters": {"defaults": {"temperature": 0.5}}}).pick()).body)["temperature"] == 0.5


async def test_a_request_that_engines_died_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Picking()
    assert (await world.pick()).endpoints
    monkeypatch.setattr("gateway.request.retry.mark_of", lambda *_: b"its mark")
    world.deps.live.suspects.guilty[b"its mark"] = world.deps.clock() + 5.0
    assert (await world.fault()).kind is Kind.CRASHES_ENGINES


def with_image(url: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


async def test_no_engine_is_given_a_url_that_a_caller_names() -> None:
    messages = with_image("http://192.0.2.1/secret.png")
    assert (await Picking().fault(messages=messages)).kind is Kind.INVALID_VALUE
    fault = await Picking(policy={"image_urls": {"hosts": ["images.example"]}}).fault(messages=messages)
    assert fault.kind is Kind.NOT_PERMITTED
    assert "data port" in fault.message


async def test_bodies_and_types_are_checked_as_on_the_data_port() -> None:
    world = Picking()
    for body, kind in ((b"{", Kind.INVALID_JSON), (b"{}", Kind.MISSING_PARAMETER), (b'{"model":"sim"}', Kind.MISSING_PARAMETER)):
        with pytest.raises(Fault) as raised:
            await world.picker.pick(head(), body, None, sees_answer=False)
        assert raised.value.kind is kind
    assert (await world.fault(headers={b"content-type": b"text/plain"})).kind is Kind.UNSUPPORTED_MEDIA
    with pytest.raises(Fault) as raised:
        await world.picker.pick(msgspec.structs.replace(head(), coding="packed"), b"\x1f", None, sees_answer=False)
    assert raised.value.kind is Kind.UNSUPPORTED_MEDIA
    assert world.outcomes == []


@pytest.mark.parametrize(
    ("path", "method", "kind"),
    [
        ("/v1/models", "GET", Kind.UNKNOWN_PATH),
        ("/v1/responses", "POST", Kind.UNKNOWN_PATH),
        ("/v1/audio/transcriptions", "POST", Kind.UNKNOWN_PATH),
        ("/v1/chat/completions", "GET", Kind.METHOD_NOT_ALLOWED),
    ],
)
def test_other_paths_go_to_no_engine(path: str, method: str, kind: Kind) -> None:
    with pytest.raises(Fault) as raised:
        endpoint_of(head(path=path, method=method))
    assert raised.value.kind is kind


def test_other_names_of_a_path_are_known() -> None:
    assert endpoint_of(head(path="/v1/chat/completions/")) is Endpoint.CHAT


async def test_an_answer_that_is_shown_teaches_the_router() -> None:
    world = Picking()
    pick = await world.pick("w" * 20_000, stream=True, sees_answer=True)
    pick.answered(200, OK_HEAD, "")
    world.path.worker.now += 0.25
    pick.feed(EVENT)
    world.path.worker.now += 0.25
    pick.feed(LAST + DONE)
    pick.whole()
    assert sum(world.in_flight.values()) == 0
    ((_, measured_s),) = world.path.worker.first_tokens
    assert measured_s == pytest.approx(0.25)


async def test_an_answer_that_is_cut_teaches_nothing_and_blames_no_engine() -> None:
    world = Picking()
    pick = await world.pick(stream=True, sees_answer=True)
    pick.answered(200, OK_HEAD, "")
    pick.feed(EVENT)
    pick.over()
    assert world.path.worker.first_tokens == []
    assert not world.deps.live.breakers.troubled


async def test_an_answer_of_sound_is_a_good_one() -> None:
    world = Picking()
    sent = msgspec.json.encode({"model": "sim", "input": "hello", "voice": "alloy"})
    pick = await world.picker.pick(head({b"x-request-id": b"theirs-9"}, "/v1/audio/speech"), sent, None, sees_answer=True)
    pick.answered(200, {b"content-type": b"audio/mpeg", b"x-envoy-upstream-service-time": b"3"}, "")
    pick.feed(b"ID3 some sound")
    pick.whole()
    found = world.deps.decisions.find("theirs-9", "acme")
    assert found is not None
    assert found.ended is not None
    assert found.ended.outcome == "ok"
    assert not world.deps.live.breakers.troubled


async def test_a_failing_engine_is_held_against_it() -> None:
    world = Picking()
    for _ in range(8):
        (await world.pick(subset={AT["a"]})).answered(500, OK_HEAD, "")
        if world.deps.live.breakers.troubled:
            break
    assert world.deps.live.breakers.troubled


async def test_a_failure_counts_at_once_and_not_only_when_the_stream_is_over() -> None:
    """The proxy passes the failure on, and ends its stream with us some time later: the caller's next request must know by then."""
    world = Picking()
    (await world.pick()).answered(404, OK_HEAD, "")
    pick = await world.pick(headers={b"x-request-id": b"theirs-8"})
    pick.answered(503, {}, "")
    assert sum(world.in_flight.values()) == 0
    found = world.deps.decisions.find("theirs-8", "acme")
    assert found is not None
    assert found.ended is not None
    assert (found.ended.outcome, found.ended.status) == ("connect_failed", 503)
    pick.over()


async def test_a_second_head_and_one_after_the_end_change_nothing() -> None:
    world = Picking(fallbacks=1)
    pick = await world.pick()
    pick.answered(200, OK_HEAD, "")
    pick.answered(200, OK_HEAD, pick.endpoints[1])
    assert sum(world.in_flight.values()) == 1
    pick.over()
    pick.answered(200, OK_HEAD, pick.endpoints[1])
    assert sum(world.in_flight.values()) == 0


async def test_a_request_that_cannot_be_written_leaves_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Fault(Kind.UNSUPPORTED_PARAMETER, "The engine does not know it.")

    world = Picking()
    monkeypatch.setattr("gateway.picker.pick.call_for", refuse)
    assert (await world.fault(headers={b"x-request-id": b"theirs-6"})).kind is Kind.UNSUPPORTED_PARAMETER
    assert world.deps.decisions.find("theirs-6", "acme") is None
    assert sum(world.in_flight.values()) == 0


async def test_how_a_request_ended_is_in_its_explanation() -> None:
    world = Picking()
    pick = await world.pick(headers={b"x-request-id": b"theirs-7"})
    pick.answered(200, OK_HEAD, "")
    pick.over()
    found = world.deps.decisions.find("theirs-7", "acme")
    assert found is not None
    assert found.ended is not None
    assert (found.ended.outcome, found.ended.status) == ("ok", 200)


@pytest.mark.parametrize(
    ("status", "from_engine", "kind"),
    [
        (200, True, None),
        (404, True, Kind.REFUSED_BY_ENGINE),
        (429, True, Kind.ENGINE_BUSY),
        (500, True, Kind.ENGINE_ERROR),
        (503, True, Kind.ENGINE_BUSY),
        (503, False, Kind.CONNECT_FAILED),
    ],
)
def test_statuses_say_of_engines(status: int, from_engine: bool, kind: Kind | None) -> None:
    fault = outcome_of(status, OK_HEAD if from_engine else {}, marked=True)
    assert (None if fault is None else fault.kind) is kind


async def test_a_busy_engine_behind_a_proxy_that_marks_no_answers_did_not_refuse_the_connection() -> None:
    world = Picking()
    (await world.pick(headers={b"x-request-id": b"theirs-5"})).answered(503, {}, "")
    found = world.deps.decisions.find("theirs-5", "acme")
    assert found is not None
    assert found.ended is not None
    assert found.ended.outcome == "engine_busy"


def test_ipv6_is_written_in_brackets() -> None:
    assert (written_endpoint("10.0.0.1:80"), written_endpoint("fd00::1:8000")) == ("10.0.0.1:80", "[fd00::1]:8000")
