"""TCP keep-alive for connections to engines, the same for every adapter: how soon a peer that vanished without a FIN is noticed."""

import socket
from typing import Final

KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3), (socket.TCP_USER_TIMEOUT, 30_000))
"""TCP keep-alive after 15 s, every 5 s, 3 times; unacknowledged data for 30 s (in ms). So a peer that vanished without a FIN
is noticed within about 30 s even while nothing is sent."""


def tune(sock: socket.socket) -> None:
    """Switch TCP keep-alive on."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
