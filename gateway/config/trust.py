"""The certificates that the control plane's HTTP clients (httpx) trust: those of the system, as the connections to engines do."""

import ssl


def verify_for(url: str) -> ssl.SSLContext | bool:
    """The `verify` argument of an httpx client for one URL; False for plain HTTP, where reading the system's certificates takes 50 ms.

    Args:
        url: the only address that the client asks; it follows no redirects.
    """
    return ssl.create_default_context() if url.startswith("https:") else False
