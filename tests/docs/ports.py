"""Replaces the ports that pages name with free ones, so that pages run beside each other and beside whatever runs on the machine."""

import re
import socket
from typing import Final

import yaml

NAMED: Final = re.compile(r"(?:(?:127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1?\]):|--port[ =]|\bport: |\blisten )(\d{2,5})\b(?!\.\d)")
"""A port of this machine, as pages write it."""
DEFAULTS: Final = (8080, 8081)
"""The ports of a gateway whose settings name none."""


class PortMap:
    """A free port for each port of a page's text; the same one each time."""

    def __init__(self, text: str) -> None:
        named = {int(port) for port in NAMED.findall(text)} | set(DEFAULTS)
        self._free = dict(zip(sorted(named), _free_ports(len(named)), strict=True))

    def replaced(self, text: str) -> str:
        """The text with free ports in place of named ones."""

        def other(match: re.Match[str]) -> str:
            return match[0].removesuffix(match[1]) + str(self._free.get(int(match[1]), match[1]))

        return NAMED.sub(other, text)

    def settings(self, text: str) -> str:
        """Settings with free ports, also in place of the default ones that they leave out."""
        text = self.replaced(text)
        document = yaml.safe_load(text) or {}
        for section, port in zip(("data", "admin"), DEFAULTS, strict=True):
            bind = f'bind: "127.0.0.1:{self._free[port]}"'
            if section not in document:
                text += f"\n{section}: {{{bind}}}\n"
            elif "bind" not in (document[section] or {}):
                text = re.sub(rf"(?m)^{section}: *(\{{)?(.*)$", lambda m, bind=bind: _with(m, bind), text, count=1)  # type: ignore[misc]
        return text


def _with(match: re.Match[str], bind: str) -> str:
    section = match[0].partition(":")[0]
    return f"{section}: {{{bind}, {match[2]}" if match[1] else f"{section}: {match[2]}\n  {bind}"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
