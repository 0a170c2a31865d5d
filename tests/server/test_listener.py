"""Ports, addresses and unix sockets."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig
from pageport.server.listener import open_listener

HAS_IPV6 = socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and bool(Path("/proc/net/if_inet6").read_text())
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6 address, not even the loopback's")


def serve_one(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.send(b"hello")


@pytest.mark.parametrize(
    ("settings", "scheme", "host"),
    [
        ({}, "http", "127.0.0.1"),
        pytest.param({"host": "::1"}, "http", "[::1]", marks=needs_ipv6),
        pytest.param({"host": "::"}, "http", "[::]", marks=needs_ipv6),
        ({"ssl_certfile": "x"}, "https", "127.0.0.1"),
    ],
)
def test_the_address_is_told_as_clients_write_it(settings: dict[str, str], scheme: str, host: str) -> None:
    with open_listener(ServerConfig(port=0, root_path="/a", **settings)) as listener:
        assert listener.url == f"{scheme}://{host}:{listener.socket.getsockname()[1]}/a/v1"


@needs_ipv6
@pytest.mark.parametrize(("host", "families"), [("::1", [socket.AF_INET6]), ("::", [socket.AF_INET6, socket.AF_INET])])
def test_an_ipv6_address_is_reached(host: str, families: list[int]) -> None:
    config = ServerConfig(port=0, host=host)
    with open_listener(config) as listener:
        listener.listen(config)
        port = listener.socket.getsockname()[1]
        for family in families:
            client = socket.socket(family)
            client.connect(("::1" if family == socket.AF_INET6 else "127.0.0.1", port))
            serve_one(listener.socket)
            assert client.recv(5) == b"hello"
            client.close()


@pytest.mark.parametrize("host", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
def test_a_taken_port_is_told(host: str) -> None:
    config = ServerConfig(port=0, host=host)
    with open_listener(config) as first:
        first.listen(config)
        port = first.socket.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"{host} port {port}: Address already in use.*--port"),
            open_listener(ServerConfig(port=port, host=host)),
        ):
            pass


def test_of_two_servers_that_load_the_first_to_be_ready_has_the_port() -> None:
    with open_listener(ServerConfig(port=0)) as first:
        config = ServerConfig(port=first.socket.getsockname()[1])
        with open_listener(config) as second:
            second.listen(config)
            with pytest.raises(ConfigurationError, match="in use"):
                first.listen(config)


def test_an_address_that_is_not_here_is_told() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"192\.0\.2\.1.*--host"),
        open_listener(ServerConfig(host="192.0.2.1")),
    ):
        pass


def test_a_unix_socket_is_reached_and_removed_at_the_end(tmp_path: Path) -> None:
    config = ServerConfig(uds=str(tmp_path / "socket"))
    with open_listener(config) as listener:
        assert listener.url == f"unix:{tmp_path}/socket"
        listener.listen(config)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(config.uds)  # type: ignore[arg-type]
            serve_one(listener.socket)
            assert client.recv(5) == b"hello"
    assert not (tmp_path / "socket").exists()


@pytest.mark.parametrize("listens", [True, False], ids=["ready", "loading"])
def test_a_unix_socket_in_use_is_told(tmp_path: Path, listens: bool) -> None:
    config = ServerConfig(uds=str(tmp_path / "socket"))
    with open_listener(config) as listener:
        if listens:
            listener.listen(config)
        with pytest.raises(ConfigurationError, match="in use"), open_listener(config):
            pass
        assert (tmp_path / "socket").exists()


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    config = ServerConfig(uds=str(tmp_path / "socket"))
    code = f"import socket, os; socket.socket(socket.AF_UNIX).bind({config.uds!r}); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (tmp_path / "socket").is_socket()
    with open_listener(config) as listener:
        listener.listen(config)


def test_a_socket_that_somebody_put_there_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with open_listener(ServerConfig(uds=str(path))), socket.socket(socket.AF_UNIX) as other:
        path.rename(tmp_path / "away")
        other.bind(str(path))
    assert path.exists()


@pytest.mark.parametrize("name", ["file", "no/such/folder/socket", "x" * 120, "x" * 300])
def test_a_path_that_can_be_no_socket_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigurationError, match="--uds"), open_listener(ServerConfig(uds=str(tmp_path / name))):
        pass
    assert (tmp_path / "file").read_text() == "mine"
