import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.discovery.kubernetes.watch import ClusterAccess
from gateway.config.discover import KubernetesSettings
from gateway.process.snapshots import Supervision
from gateway.process.worker_link import publish
from gateway.wiring.fleet import SERVICE_ACCOUNT, OwnPorts, cluster_access
from tests.gateway_harness import settings_for


@pytest.mark.req("R40")
def test_ports_that_are_bound_after_a_process_has_started_are_known_as_ours(tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        slot = SimpleNamespace(run_dir=str(tmp_path), sock=bound)
        ours = OwnPorts(settings_for(["http://h:1"]), slot)  # type: ignore[arg-type]  # it has what is used
        assert bound.getsockname()[1] in ours
        assert 40_001 not in ours
        publish(tmp_path, "supervisor.json", Supervision(1, 40_001, 40_002, ()))
        assert all(port in ours for port in (40_001, 40_002))
        assert 40_003 not in ours


def test_the_api_server_is_that_of_the_cluster_unless_the_settings_name_one(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    within = cluster_access(KubernetesSettings(service="chat"), tmp_path, environ)
    assert within == ClusterAccess("https://[fd00::1]:6443", str(SERVICE_ACCOUNT / "token"), str(SERVICE_ACCOUNT / "ca.crt"))
    named = KubernetesSettings(service="chat", address="https://10.0.0.1:6443", token_file="token")
    assert cluster_access(named, tmp_path, {}) == ClusterAccess("https://10.0.0.1:6443", str(tmp_path / "token"), None)
