import sys
from types import FrameType
from typing import Any

import pytest

from domain.identity import KeyId, ProjectId, TenantId
from tenancy import grant as grant_module
from tenancy.accounts import DEFAULT_PROJECT, Contents, Organisation, Project, Tenant
from tenancy.directory import GLOBAL_TAG, Directory
from tenancy.grant import Grant, Holder
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, Pepper, digest_of, mint
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tenancy.rights import Caps, KeyScope, Rights, Role

PEPPER = Pepper("k1", b"p" * 32)
ACME, BOLT, LAB = TenantId("acme"), TenantId("bolt"), ProjectId("lab")


def key(seed: int, tenant: TenantId = ACME, project: ProjectId = DEFAULT_PROJECT, **fields: Any) -> tuple[Minted, KeyRecord]:
    minted = mint("live", bytes([seed]) * ENTROPY_BYTES)
    return minted, KeyRecord(minted.id, tenant, project, "k1", (digest_of(PEPPER.secret, minted.secret),), **fields)


ONE, ONE_RECORD = key(1)
LABS, LABS_RECORD = key(2, project=LAB, rights=Rights(models=frozenset({"a"}), caps=Caps(max_choices=3)))
BOLTS, BOLTS_RECORD = key(3, BOLT)


def limit(level: Level, name: str, **fields: Any) -> Limit:
    return Limit(**{"scope": Scope(level, name), "meter": Meter.TOKENS, "window": Window.DAY, "amount": 1000, **fields})


def directory(*limits: Limit, **parts: Any) -> Directory:
    made: dict[str, Any] = {
        "organisations": (Organisation("corp", rights=Rights(caps=Caps(max_choices=5, tools=False))), Organisation("other")),
        "tenants": (Tenant(ACME, "corp"), Tenant(BOLT, "other")),
        "projects": (Project(ACME, DEFAULT_PROJECT), Project(ACME, LAB), Project(BOLT, DEFAULT_PROJECT)),
        "keys": (ONE_RECORD, LABS_RECORD, BOLTS_RECORD),
        "limits": limits,
    }
    return Directory(Contents(**{**made, **parts}), PEPPER)


def counted(grant: Grant, model: str = "m", user: str = "") -> dict[str, list[str]]:
    """Group tags, in their order, and the scopes of their lines."""
    return {group.tag: [str(line.limit.scope) for line in group.lines] for group in grant.groups(model, user)}


EVERY_LEVEL = (
    limit(Level.GLOBAL, ""),
    limit(Level.MODEL, "m"),
    limit(Level.ORGANISATION, "corp"),
    limit(Level.TENANT, "acme"),
    limit(Level.TENANT, "acme", window=Window.MONTH),
    limit(Level.PROJECT, "acme/lab"),
    limit(Level.KEY, LABS.id),
    limit(Level.USER, "acme"),
    limit(Level.USER, "acme/lab"),
    limit(Level.KEY, BOLTS.id),
    limit(Level.PROJECT, "bolt/lab"),
)


def test_a_request_is_limited_by_every_level_it_belongs_to_the_tenants_first() -> None:
    labs = directory(*EVERY_LEVEL).grant(LABS.id, 0.0)
    shared = {"org/corp": ["organisation corp"], "model/m": ["model m"], GLOBAL_TAG: ["global"]}
    own = ["tenant acme", "tenant acme", "project acme/lab", f"key {LABS.id}"]
    assert list(counted(labs)) == ["acme", "org/corp", "model/m", GLOBAL_TAG]
    assert counted(labs) == {"acme": own, **shared}
    assert counted(labs, user="ann") == {"acme": [*own, "user acme", "user acme/lab"], **shared}
    assert counted(labs, "another") == {"acme": own, "org/corp": shared["org/corp"], GLOBAL_TAG: ["global"]}


def test_others_limits_do_not_count() -> None:
    known = directory(*EVERY_LEVEL)
    assert counted(known.grant(BOLTS.id, 0.0), user="ann") == {"bolt": [f"key {BOLTS.id}"], "model/m": ["model m"], GLOBAL_TAG: ["global"]}
    assert counted(known.grant(ONE.id, 0.0), "x")["acme"] == ["tenant acme", "tenant acme"]
    assert directory().grant(ONE.id, 0.0).groups("m", "ann") == ()


def test_each_end_user_has_a_state_of_its_own_that_does_not_show_the_label() -> None:
    grant = directory(limit(Level.USER, "acme")).grant(ONE.id, 0.0)
    (ann,), (ben,), (again,) = (grant.groups("m", user) for user in ("ann@example.com", "ben", "ann@example.com"))
    assert ann == again
    assert ann.lines[0].key != ben.lines[0].key
    assert ann.lines[0].key.startswith("user:acme:tokens:day:")
    assert len(ann.lines[0].key.rpartition(":")[2]) == 16
    assert "ann" not in ann.lines[0].key
    assert grant.groups("m") == ()
    assert len(grant.groups("m", "\ud800")) == 1  # whatever a caller sends


def test_no_tenant_name_is_the_tag_of_somebody_elses_group() -> None:
    tenant = Tenant(TenantId("global"), "corp")
    grant = directory(
        *EVERY_LEVEL, limit(Level.TENANT, "global"), tenants=(tenant,), projects=(Project(tenant.name, DEFAULT_PROJECT),)
    ).for_tenant(tenant.name, DEFAULT_PROJECT, 0.0)
    assert grant is not None
    tags = [group.tag for group in grant.groups("m")]
    assert len(tags) == len(set(tags)) == 4


def test_a_grant_is_compiled_once_and_its_groups_too() -> None:
    known = directory(*EVERY_LEVEL)
    grant = known.grant(LABS.id, 0.0)
    assert known.grant(LABS.id, 1e9) is grant
    assert grant.groups("m") is grant.groups("m")
    assert grant.groups("x") is grant.groups("y")


def test_a_raise_counts_until_it_ends_and_then_the_grant_is_another() -> None:
    raised = limit(Level.TENANT, "acme", raised_to=5000, raised_until_unix=100.0)
    later = limit(Level.MODEL, "m", raised_to=5000, raised_until_unix=200.0)
    known = directory(raised, later)

    def amounts(now: float) -> list[int]:
        return [line.amount for group in known.grant(ONE.id, now).groups("m") for line in group.lines]

    assert (amounts(0.0), amounts(99.9), amounts(100.0), amounts(199.9), amounts(200.0)) == (
        [5000, 5000],
        [5000, 5000],
        [1000, 5000],
        [1000, 5000],
        [1000, 1000],
    )


def test_rights_are_those_of_all_levels() -> None:
    rights = directory().grant(LABS.id, 0.0).rights
    assert rights.refuses_model("b") == Scope(Level.KEY, LABS.id)
    assert rights.max_choices is not None
    assert (rights.max_choices.value, rights.max_choices.scope.level) == (3, Level.KEY)
    assert rights.tools_refused_by == Scope(Level.ORGANISATION, "corp")


def test_a_grant_says_whose_it_is() -> None:
    admin, record = key(9, scopes=frozenset({KeyScope.ADMIN}), roles=frozenset({Role.AUDITOR}))
    known = directory(keys=(ONE_RECORD, record))
    assert known.grant(ONE.id, 0.0).holder == Holder("corp", ACME, DEFAULT_PROJECT, ONE.id)
    assert known.grant(admin.id, 0.0).holder.roles == {Role.AUDITOR}
    with pytest.raises(KeyError):
        known.grant(KeyId("nosuchkey0"), 0.0)


def test_a_caller_without_a_key_is_its_projects() -> None:
    known = directory(*EVERY_LEVEL)
    grant = known.for_tenant(ACME, LAB, 0.0)
    assert grant is not None
    assert grant is known.for_tenant(ACME, LAB, 1.0)
    assert counted(grant)["acme"] == ["tenant acme", "tenant acme", "project acme/lab"]
    assert grant.holder == Holder("corp", ACME, LAB)
    assert known.for_tenant(ACME, ProjectId("no"), 0.0) is None
    assert known.for_tenant(TenantId("no"), LAB, 0.0) is None


@pytest.mark.parametrize(
    "parts",
    [
        {"organisations": (Organisation("corp", disabled=True), Organisation("other"))},
        {"tenants": (Tenant(ACME, "corp", disabled=True), Tenant(BOLT, "other"))},
        {"projects": (Project(ACME, DEFAULT_PROJECT, disabled=True), Project(ACME, LAB, disabled=True), Project(BOLT, DEFAULT_PROJECT))},
        {"projects": (Project(BOLT, DEFAULT_PROJECT),)},
        {"organisations": (Organisation("other"),)},
    ],
)
def test_keys_are_refused_with_what_they_belong_to_and_others_are_not(parts: dict[str, Any]) -> None:
    known = directory(**parts)
    assert known.keys.authenticate(ONE.text, 0.0) is None
    assert known.keys.authenticate(LABS.text, 0.0) is None
    assert known.for_tenant(ACME, LAB, 0.0) is None
    assert known.keys.authenticate(BOLTS.text, 0.0) is not None


def test_prices_are_there() -> None:
    price = Price("p", "m", "*", 5.0, TokenRates(output=7))
    assert directory(prices=(price,)).prices.at("m", "r1", 6.0) is price


def test_groups_of_an_end_user_are_made_once_and_a_bounded_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters prepare a group by its identity; labels are the callers' own, so there may be any number of them."""
    monkeypatch.setattr(grant_module, "MAX_LABELLED", 3)
    known = directory(limit(Level.USER, "acme"), limit(Level.KEY, LABS.id), limit(Level.MODEL, "m"))
    one, labs = known.grant(ONE.id, 0.0), known.grant(LABS.id, 0.0)
    assert one.groups("m", "ann") is one.groups("m", "ann")
    assert one.groups("a", "ann") is one.groups("b", "ann"), "models without limits are one"
    assert [group.tag for group in one.groups("a", "ann")] == ["acme"]
    assert counted(labs, user="ann")["acme"] == [f"key {LABS.id}", "user acme"], "each grant has its own"
    for n in range(100):
        assert one.groups("m", f"u{n}")[0].lines != one.groups("m", "ann")[0].lines
        assert len(known._of_users) <= 3


def test_groups_that_depend_on_neither_model_nor_end_user_are_the_same_for_every_request() -> None:
    tenants = directory(limit(Level.TENANT, "acme")).for_tenant(ACME, LAB, 0.0)
    assert tenants is not None
    assert tenants.of_every_request == tenants.groups("m") == tenants.groups("other", "ann")
    for narrower in (limit(Level.MODEL, "m"), limit(Level.USER, "acme")):
        grant = directory(limit(Level.TENANT, "acme"), narrower).for_tenant(ACME, LAB, 0.0)
        assert grant is not None
        assert grant.of_every_request is None


def test_the_limits_of_tenants_are_those_under_their_own_tag() -> None:
    own = (limit(Level.TENANT, "acme"), limit(Level.PROJECT, "acme/lab", window=Window.MINUTE), limit(Level.KEY, ONE.id))
    shared = (limit(Level.GLOBAL, ""), limit(Level.ORGANISATION, "corp"), limit(Level.MODEL, "m"), limit(Level.USER, "acme"))
    gone = limit(Level.KEY, "no such key")
    found = list(directory(*own, *shared, gone).limits_of_tenants())
    assert sorted(str(limit.scope) for _, limit in found) == sorted(str(limit.scope) for limit in own)
    assert {tenant for tenant, _ in found} == {"acme"}
    others = directory(*own, *shared, gone).shared_limits()
    assert {(str(scope), tag): limit for scope, tag, limit in others} == {
        ("global", "global/"): shared[0],
        ("organisation corp", "org/corp"): shared[1],
        ("model m", "model/m"): shared[2],
    }


def lines_of_first_grant(tenants: int) -> int:
    """Lines of Python that the first request of a new directory runs."""
    limits = [limit(Level.TENANT, f"t{n}", raised_to=2000, raised_until_unix=9e9) for n in range(tenants)]
    made, ran = directory(*EVERY_LEVEL, *limits), 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal ran
        ran += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        made.grant(LABS.id, 0.0)
    finally:
        sys.settrace(before)
    return ran


def test_the_first_request_of_a_new_directory_does_not_pay_for_all_tenants() -> None:
    # a walk over all limits is at least a line for each; a few more or less are a collection of garbage, or an import
    assert lines_of_first_grant(2000) < lines_of_first_grant(1) + 500
