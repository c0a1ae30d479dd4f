"""The registry of models over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routing.profile import EngineProfile
from routing.rates import PRIORS
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

REVISIONS = f"{API}/model-revisions"
DIGEST = "sha256:" + "0123456789ab" + "cd" * 26


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


def wanted(**fields: Any) -> dict[str, Any]:
    return {"model": "tide/8b", "revision": "v2", "weights": "/models/tide-8b", "digest": DIGEST, **fields}


async def test_a_revision_is_registered_shown_listed_and_audited(admin: Admin) -> None:
    made = await admin.client.post(REVISIONS, json=wanted(layout={"tensor": 4}, context_tokens=8192), headers=bearer("operator"))
    assert made.status_code == 201
    shown = made.json()
    assert (shown["reference"], shown["proof"]) == ("tide/8b@v2", "@sha256-0123456789ab")
    assert shown["layout"] == {"tensor": 4, "pipeline": 1, "data": 1, "expert": 1}
    assert (shown["pools"], shown["retired_unix"], shown["profile"]) == ([], None, None)
    assert shown["registered_by"].startswith("key")
    assert (await admin.client.get(f"{REVISIONS}/tide/8b@v2", headers=bearer("auditor"))).json() == shown
    assert (await admin.client.get(f"{REVISIONS}/tide%2F8b%40v2", headers=OWNER)).json() == shown
    assert (await admin.client.post(REVISIONS, json=wanted(revision="v3"), headers=OWNER)).status_code == 201
    page = (await admin.client.get(f"{REVISIONS}?limit=1", headers=OWNER)).json()
    assert [one["revision"] for one in page["items"]] == ["v2"]
    rest = (await admin.client.get(f"{REVISIONS}?cursor={page['next_cursor']}", headers=OWNER)).json()
    assert ([one["revision"] for one in rest["items"]], rest["next_cursor"]) == (["v3"], None)
    assert (await admin.client.get(f"{REVISIONS}?model=tide", headers=OWNER)).json()["items"] == []
    entry = (await admin.journal.newest(None, 2))[1].entry
    assert (entry.action, entry.target, entry.role) == ("model.register", "model/tide/8b@v2", "operator")
    assert DIGEST in entry.after


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"digest": "sha256:abc"}, "digest", "pattern"),
        ({"weights": "models/x"}, "weights", "is no reference to weights"),
        ({"weights": "ftp://host/x"}, "weights", "no place that weights are read from"),
        ({"weights": "https://user:secret@host/x"}, "weights", "a user, a password or a query"),
        ({"model": "a@b"}, "model", "pattern"),
        ({"revision": "a/b"}, "revision", "pattern"),
        ({"layout": {"tensor": 0}}, "layout.tensor", "must be at least 1"),
    ],
)
async def test_what_cannot_be_registered_is_named(admin: Admin, fields: dict[str, Any], param: str, words: str) -> None:
    refused = await admin.client.post(REVISIONS, json=wanted(**fields), headers=OWNER)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert words in error["message"]
    assert "secret" not in error["message"]


async def test_a_revision_is_never_replaced(admin: Admin) -> None:
    assert (await admin.client.post(REVISIONS, json=wanted(), headers=OWNER)).status_code == 201
    again = await admin.client.post(REVISIONS, json=wanted(weights="/other"), headers=OWNER)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_exists")
    assert "'tide/8b' has a revision 'v2' already" in again.json()["error"]["message"]
    assert (await admin.client.get(f"{REVISIONS}/tide/8b@v2", headers=OWNER)).json()["weights"] == "/models/tide-8b"


async def test_a_revision_in_use_does_not_retire(admin: Admin) -> None:
    await admin.client.post(REVISIONS, json=wanted(model="tide-8b", revision="v1"), headers=OWNER)
    shown = (await admin.client.get(f"{REVISIONS}/tide-8b@v1", headers=OWNER)).json()
    assert (shown["pools"], shown["disagreeing_pools"]) == (["pinned-chat"], [])
    refused = await admin.client.post(f"{REVISIONS}/tide-8b@v1/retire", headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "in_use")
    assert "pool pinned-chat is pinned to it" in refused.json()["error"]["message"]
    await admin.client.post(REVISIONS, json=wanted(), headers=OWNER)
    retired = await admin.client.post(f"{REVISIONS}/tide/8b@v2/retire", headers=bearer("operator"))
    assert (retired.status_code, retired.json()["retired_unix"] is not None) == (200, True)
    entry = (await admin.journal.newest(None, 1))[0].entry
    assert (entry.action, entry.before) == ("model.retire", '{"retired_unix":null}')


async def test_pools_whose_settings_say_another_digest_are_shown(admin: Admin) -> None:
    other = wanted(model="tide-8b", revision="v1", digest="sha256:" + "ef" * 32)
    made = (await admin.client.post(REVISIONS, json=other, headers=OWNER)).json()
    assert (made["pools"], made["disagreeing_pools"]) == (["pinned-chat"], ["pinned-chat"])
    (listed,) = (await admin.client.get(REVISIONS, headers=OWNER)).json()["items"]
    assert listed["disagreeing_pools"] == ["pinned-chat"]


async def test_a_profile_is_kept_and_a_document_that_is_none_is_refused(admin: Admin) -> None:
    await admin.client.post(REVISIONS, json=wanted(), headers=OWNER)
    profile = EngineProfile(engine="vllm", served="m", measured_unix=1.0, rates=PRIORS["h100-8b"]._asdict(), kv_tokens=1000)
    body = msgspec.to_builtins(profile)
    path = f"{REVISIONS}/tide/8b@v2/profile"
    assert (await admin.client.post(path, json=body, headers=bearer("operator"))).json()["profile"] == body
    assert (await admin.client.get(f"{REVISIONS}/tide/8b@v2", headers=OWNER)).json()["profile"] == body
    for wrong in ({}, {**body, "rates": {}}, {**body, "rates": {**body["rates"], "step_s": -1}}, {**body, "more": 1}):
        refused = await admin.client.post(path, json=wrong, headers=OWNER)
        assert (refused.status_code, "no profile of an engine" in refused.json()["error"]["message"]) == (400, True)


async def test_an_unknown_revision_is_not_found(admin: Admin) -> None:
    assert (await admin.client.get(f"{REVISIONS}/tide@v9", headers=OWNER)).status_code == 404
    assert (await admin.client.post(f"{REVISIONS}/tide@v9/retire", headers=OWNER)).status_code == 404
    nameless = await admin.client.get(f"{REVISIONS}/tide", headers=OWNER)
    assert "write MODEL@REVISION" in nameless.json()["error"]["message"]
    for role in ("auditor", "billing"):
        assert (await admin.client.post(REVISIONS, json=wanted(), headers=bearer(role))).status_code == 403
    assert (await admin.client.get(REVISIONS, headers=bearer("tenant-admin"))).status_code == 403
