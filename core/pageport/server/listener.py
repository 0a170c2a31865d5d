"""``Listener``: the address that the server takes."""

import errno
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig

# Where the system lists the unix sockets that processes hold, also those that nobody may connect to yet.
HELD_UNIX_SOCKETS = Path("/proc/net/unix")
# Connections that may wait to be accepted.
BACKLOG = 2048


@dataclass(frozen=True)
class Listener:
    """A bound socket, and where clients find it."""

    socket: socket.socket
    url: str

    def listen(self, config: ServerConfig) -> None:
        """Let clients connect.

        Raises:
            ConfigurationError: another server that took the same port began to listen before this one.
        """
        try:
            self.socket.listen(BACKLOG)
        except OSError as error:
            raise _taken(config, error) from error


@contextmanager
def open_listener(config: ServerConfig) -> Iterator[Listener]:
    """Take the address, without listening yet: until the engine is ready, connections are refused.

    A unix socket's file is removed afterwards.

    Raises:
        ConfigurationError: it cannot be had.
    """
    if config.uds is None:
        with _bind_port(config) as bound:
            yield Listener(bound, _url(config, bound.getsockname()[1]))
        return
    path = Path(config.uds).absolute()
    with _bind_path(path) as bound:
        own = path.stat()
        try:
            yield Listener(bound, f"unix:{path}")
        finally:
            # Somebody may have removed the file and put another one there.
            with suppress(OSError):
                if path.stat().st_ino == own.st_ino:
                    path.unlink()


def _taken(config: ServerConfig, error: OSError) -> ConfigurationError:
    """Say that the address cannot be had."""
    return ConfigurationError(
        f"Cannot listen on {config.host} port {config.port}: {error.strerror}. "
        "Stop what uses it, or choose another --host or --port."
    )


def _bind_port(config: ServerConfig) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if config.host == "::":
                # Every address of this machine, whichever family it is of.
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _taken(config, error) from error
    return bound


def _bind_path(path: Path) -> socket.socket:
    if not _may_be_socket(path):
        raise ConfigurationError(f"--uds: {path} is there already, and is no socket. Choose another path.")
    if _is_held(path):
        raise ConfigurationError(f"--uds: {path} is in use. Stop what listens there, or choose another path.")
    # What is left is the file of a server that was killed.
    bound = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        bound.bind(str(path))
    except OSError as error:
        bound.close()
        # A path that does not fit in the address has no number, and its message names no limit.
        reason = error.strerror or "a socket's path may have 107 bytes"
        raise ConfigurationError(f"--uds: {path} cannot be made: {reason}. Choose another path.") from error
    return bound


def _may_be_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return True  # nothing is there, or binding it will say what is wrong


def _is_held(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.settimeout(1.0)
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES, errno.EPERM) or isinstance(error, TimeoutError):
                return True
        else:
            return True
    with suppress(OSError):
        lines = HELD_UNIX_SOCKETS.read_text(errors="replace").splitlines()
        return any(line.endswith(f" {path}") for line in lines)
    return False


def _url(config: ServerConfig, port: int) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://{host}:{port}{config.root_path}/v1"
