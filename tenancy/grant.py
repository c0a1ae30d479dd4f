"""The rights and limits of one key, compiled once and looked up by every request. Pure."""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.limits import Group, LimitLine
from tenancy.rights import INFERENCE_ONLY, Allowed, KeyScope, Role

LABEL_BYTES: Final = 8
"""Length of an end-user label's digest, 16 hexadecimal digits. Two labels with the same digest would share a limit; the counter store
has only the digest."""

Groups = tuple[Group, ...]

MAX_LABELLED: Final = 4096
"""Groups of end users that are kept for all grants of a directory, about 1.5 KB each; at the bound all are dropped, and made again when
needed. Counters keep what they compiled of a group for as long as it is the same object."""

OfUsers = dict[tuple["Grant", str, str], Groups]
"""Groups by grant, model (empty for one without limits of its own), and label."""


def digest_of_label(user: str) -> str:
    """The digest that names an end user's counters."""
    return hashlib.blake2b(user.encode("utf-8", "surrogatepass"), digest_size=LABEL_BYTES).hexdigest()


class Holder(msgspec.Struct, frozen=True):
    """The organisation, tenant, project and key that a grant belongs to. `key_id` is empty for callers without an API key."""

    organisation: str
    tenant: TenantId
    project: ProjectId
    key_id: KeyId = KeyId("")
    scopes: frozenset[KeyScope] = INFERENCE_ONLY
    roles: frozenset[Role] = frozenset()


class Grant:
    """The rights and limits of one key, or of a project for callers without one.

    Args:
        holder: organisation, tenant, project and key that the grant belongs to.
        rights: the tightest of all levels.
        own: lines of the tenant, the project and the key.
        per_user: lines that count for each end user separately; their keys lack the user.
        organisation: the group of the organisation's limits; None without any.
        models: groups of limits of models, by public name; shared by all grants.
        everywhere: the group of the gateway's limits; None without any.
        of_users: where groups of end users are kept, shared by all grants.
    """

    __slots__ = (
        "_everywhere",
        "_model_groups",
        "_of_model",
        "_of_users",
        "_organisation",
        "_own",
        "_per_user",
        "_plain",
        "holder",
        "of_every_request",
        "rights",
    )

    def __init__(
        self,
        holder: Holder,
        rights: Allowed,
        *,
        own: tuple[LimitLine, ...],
        per_user: tuple[LimitLine, ...],
        organisation: Group | None,
        models: Mapping[str, Group],
        everywhere: Group | None,
        of_users: OfUsers,
    ) -> None:
        self.holder = holder
        self.rights = rights
        self._own = own
        self._per_user = per_user
        self._organisation = organisation
        self._model_groups = models
        self._everywhere = everywhere
        self._plain = self._groups(None, own)
        self.of_every_request = None if models or per_user else self._plain
        """The groups of every request, as `groups` returns them; None where they depend on the model or the end user."""
        self._of_model: dict[str, Groups] = {}
        self._of_users = of_users

    def groups(self, model: str, user: str = "") -> Groups:
        """Every limit on a request for a public model name, grouped by where it is counted: the tenant's group first, then those
        shared with other tenants. Empty without any limit.

        Args:
            user: the end-user label; empty for none, and then no limit per end user counts.
        """
        if user and self._per_user:
            key = (self, model if model in self._model_groups else "", user)
            groups = self._of_users.get(key)
            if groups is None:
                if len(self._of_users) >= MAX_LABELLED:
                    self._of_users.clear()
                groups = self._of_users[key] = self._labelled(model, user)
            return groups
        groups = self._of_model.get(model)
        if groups is not None:
            return groups
        shared = self._model_groups.get(model)
        if shared is None:
            return self._plain
        groups = self._of_model[model] = self._groups(shared, self._own)  # as many as there are limited models
        return groups

    def _labelled(self, model: str, user: str) -> Groups:
        label = digest_of_label(user)
        return self._groups(self._model_groups.get(model), self._own + tuple(_for_user(line, label) for line in self._per_user), label)

    def _groups(self, model: Group | None, lines: tuple[LimitLine, ...], label: str = "") -> Groups:
        own = Group(self.holder.tenant, lines, label=label) if lines else None
        return tuple(group for group in (own, self._organisation, model, self._everywhere) if group is not None)

    def __repr__(self) -> str:
        return f"Grant({self.holder!r})"


def _for_user(line: LimitLine, label: str) -> LimitLine:
    return LimitLine(f"{line.key}:{label}", line.meter, line.window, line.amount, line.burst, line.soft, line.limit)
