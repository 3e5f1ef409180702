"""TCP ports of this machine for engines to listen on."""

import socket

from engines.base import EngineError

LOOPBACK = "127.0.0.1"
_LAST_PORT = 65535


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port_is_free(port: int) -> None:
    """Raises EngineError when it is no port, or somebody listens there."""
    if not 0 < port <= _LAST_PORT:
        raise EngineError(f"engine.port={port} is no port; set 1 to {_LAST_PORT}, or 0 for a free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EngineError(
                f"port {port}: {error.strerror}; set engine.port to another, or to 0 for a free one"
            ) from error
