"""The watch towards an API server with TLS: what rotates, and what is said of a certificate that nobody vouches for."""

import random
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from backends.discovery.kubernetes import watch
from backends.discovery.kubernetes.watch import PODS, ClusterAccess, ObjectQuery, ObjectWatch
from domain.membership import SourceError
from tests.kubernetes_api import KubernetesApi, kubernetes_api, pod


def serving(ca: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(context)
    return context


class Account:
    """The files of a service account, as a pod has them mounted."""

    def __init__(self, folder: Path, ca: trustme.CA, token: str) -> None:
        self.token_file, self.ca_file = folder / "token", folder / "ca.crt"
        self.token_file.write_text(token)
        ca.cert_pem.write_to_path(self.ca_file)

    def watch_of(self, api: KubernetesApi) -> ObjectWatch:
        access = ClusterAccess(api.url, str(self.token_file), str(self.ca_file))
        return ObjectWatch(ObjectQuery(PODS, "engines", "app=vllm"), access, lambda: 0.0, random.Random(1))


async def refused(watched: ObjectWatch) -> str:
    with pytest.raises(SourceError) as raised:
        await watched.advance()
    return str(raised.value)


async def test_a_token_that_rotates_between_two_watches_is_read_again_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = trustme.CA()
    account = Account(tmp_path, ca, "first")
    async with kubernetes_api(pod("a", "10.0.0.1"), tls=serving(ca)) as api:
        api.token = "first"
        watched = account.watch_of(api)
        await watched.advance()
        monkeypatch.setattr(watch, "WATCH_S", 0)
        await watched.advance()
        account.token_file.write_text("second")
        api.token = "second"
        api.put(pod("b", "10.0.0.2"))
        monkeypatch.setattr(watch, "WATCH_S", 60)
        await watched.advance()
        assert list(watched.objects) == ["a", "b"]
        assert api.lists == 1
        await watched.close()


async def test_a_server_whose_ca_is_not_ours_is_not_asked_and_a_new_ca_file_is_taken_up(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()
    account = Account(tmp_path, ours, "token")
    async with kubernetes_api(pod("a", "10.0.0.1"), tls=serving(theirs)) as api:
        api.token = "token"
        watched = account.watch_of(api)
        assert "CERTIFICATE_VERIFY_FAILED" in await refused(watched)
        assert api.asked == []
        theirs.cert_pem.write_to_path(account.ca_file)
        await watched.advance()
        assert list(watched.objects) == ["a"]
        await watched.close()


async def test_a_server_with_a_new_certificate_of_a_new_ca_is_followed_once_the_file_has_it(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    account = Account(tmp_path, first, "token")
    context = serving(first)
    async with kubernetes_api(pod("a", "10.0.0.1"), tls=context) as api:
        watched = account.watch_of(api)
        await watched.advance()
        second.issue_cert("127.0.0.1").configure_cert(context)
        second.cert_pem.write_to_path(account.ca_file)
        api.cut()
        assert "cannot be read" in await refused(watched)
        api.put(pod("b", "10.0.0.2"))
        await watched.advance()
        assert list(watched.objects) == ["a", "b"]
        assert api.lists == 1
        await watched.close()


async def test_an_event_that_could_not_be_kept_comes_again_and_is_not_passed_over() -> None:
    broken = True

    def keep(found: Any) -> Any:
        if broken and found.metadata.name == "b":
            raise RuntimeError("no room")
        return found

    async with kubernetes_api(pod("a", "10.0.0.1")) as api:
        watched = ObjectWatch(ObjectQuery(PODS, "engines", "app=vllm"), ClusterAccess(api.url), lambda: 0.0, random.Random(1), keep)
        await watched.advance()
        api.put(pod("b", "10.0.0.2"))
        assert "no room" in await refused(watched)
        broken = False
        await watched.advance()
        assert list(watched.objects) == ["a", "b"]
        assert api.lists == 1
        await watched.close()
