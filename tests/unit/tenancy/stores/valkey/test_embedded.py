"""The embedded server's own promises: private, kept, alone in its folder, gone with its keeper."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import hiredis
import pytest

from tenancy.stores.valkey import embedded
from tenancy.stores.valkey.embedded import CannotStartStore, EmbeddedServer, answers


def ask(path: Path, *parts):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        sock.sendall(hiredis.pack_command(parts))
        reader = hiredis.Reader()
        while (reply := reader.gets()) is False:
            reader.feed(sock.recv(65_536))
        return reply


@pytest.fixture
def server(tmp_path):
    server = EmbeddedServer(tmp_path / "files", tmp_path / "counters.sock")
    yield server
    server.stop()


def test_only_its_owner_can_open_it_and_no_port_is_open(server, tmp_path):
    server.start()
    assert stat.S_IMODE((tmp_path / "counters.sock").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "files").stat().st_mode) == 0o700
    assert ask(tmp_path / "counters.sock", "CONFIG", "GET", "port") == [b"port", b"0"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_what_it_holds_survives_its_end(server, tmp_path, how):
    path = tmp_path / "counters.sock"
    pid = server.start()
    ask(path, "SET", "spent", "42")
    os.kill(pid, how)
    while server.ended() is None:
        time.sleep(0.005)
    again = EmbeddedServer(tmp_path / "files", path)
    again.start()
    try:
        assert ask(path, "GET", "spent") == b"42"
    finally:
        again.stop()
    assert not answers(path)


def test_two_gateways_do_not_share_its_files(server, tmp_path, monkeypatch):
    server.start()
    monkeypatch.setattr(embedded, "END_S", -0.9)
    with pytest.raises(CannotStartStore, match="in use by another gateway"):
        EmbeddedServer(tmp_path / "files", tmp_path / "other.sock").start()
    assert answers(tmp_path / "counters.sock")


def test_a_server_that_cannot_start_says_so(server, tmp_path):
    folder = tmp_path / "files" / "appendonlydir"
    folder.mkdir(parents=True)
    (folder / "appendonly.aof.manifest").write_text("this is no manifest\n")
    with pytest.raises(CannotStartStore, match="ended with exit code"):
        server.start()


def test_it_ends_with_its_keeper_however_that_ends(tmp_path):
    program = "import sys, time, pathlib; from tenancy.stores.valkey.embedded import EmbeddedServer\n"
    program += "home = pathlib.Path(sys.argv[1]); print(EmbeddedServer(home / 'files', home / 's').start(), flush=True); time.sleep(60)"
    keeper = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None
    keeper.stdout.readline()
    assert answers(tmp_path / "s")
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    again = EmbeddedServer(tmp_path / "files", tmp_path / "s")
    again.start()  # waits until the old one has let go of the files
    again.stop()
