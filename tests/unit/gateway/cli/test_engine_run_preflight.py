import json
import socket

import msgspec
import pytest
import typer

from gateway.admin.app import PoolShown
from gateway.cli.admin_client import AdminClient
from gateway.cli.engine_run import PoolSeen, need_free_port, need_pool
from gateway.cli.launch_options import launch_from
from tests.unit.gateway.cli.test_engine_check import engine

CHAT = PoolShown("chat", "llama", "vllm")


def test_a_free_port_is_fine_and_a_taken_one_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(typer.Exit):
                need_free_port(launch_from("vllm-8b", [f"port={port}", f"host={host}"]))
            assert f"port {port} of 127.0.0.1 is taken" in capsys.readouterr().err
    need_free_port(launch_from("vllm-8b", [f"port={port}"]))


def test_the_pool_is_looked_for_in_what_the_admin_port_lists(capsys: pytest.CaptureFixture[str]) -> None:
    with engine({"/pools": msgspec.json.encode({"pools": [CHAT]})}) as url:
        assert need_pool(AdminClient(url), "chat") == PoolSeen("chat", "llama", "vllm")
        with pytest.raises(typer.Exit):
            need_pool(AdminClient(url), "nosuch")
    assert "--pool nosuch: the gateway has no such pool; there are chat" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [b"<html>", json.dumps({"backends": []}).encode()])
def test_another_server_is_not_taken_for_an_admin_port(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with engine({"/pools": answer}) as url, pytest.raises(typer.Exit):
        need_pool(AdminClient(url), "chat")
    assert "look at --admin" in capsys.readouterr().err


def test_what_does_not_fit_the_pool_is_said() -> None:
    launch = launch_from("vllm-8b", ["served_name=llama"])
    assert PoolSeen("chat", "llama", "vllm").mismatches(launch) == []
    model, dialect = PoolSeen("chat", "qwen", "sglang").mismatches(launch)
    assert "it serves llama, and pool chat asks for qwen" in model
    assert "it is vllm, and pool chat speaks sglang" in dialect
