"""Registered backends in memory, for tests and for trying things out."""

import msgspec

from domain.membership import MAX_REGISTERED, Member, MembersFull, MemberTaken


class MemoryMemberStore:
    """Registered backends in memory (`domain.membership.MemberStore`)."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._version = 1

    async def version(self) -> int:
        return self._version

    async def load(self) -> list[Member]:
        return [self._members[backend_id] for backend_id in sorted(self._members)]

    async def add(self, member: Member, now_unix: float) -> None:
        if member.id in self._members:
            raise MemberTaken(f"backend {member.id!r} is registered already")
        if len(self._members) >= MAX_REGISTERED:
            raise MembersFull(f"{MAX_REGISTERED} backends are registered already; remove some")
        self._members[member.id] = member
        self._version += 1

    async def set_drain(self, backend_id: str, grace_s: float | None) -> bool:
        member = self._members.get(backend_id)
        if member is None:
            return False
        self._members[backend_id] = msgspec.structs.replace(member, drain_grace_s=grace_s)
        self._version += 1
        return True

    async def remove(self, backend_id: str) -> bool:
        if self._members.pop(backend_id, None) is None:
            return False
        self._version += 1
        return True
