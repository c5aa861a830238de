"""A port of the loopback to listen on."""

import random
import socket

from models.errors import ServiceError

# Below the range of outgoing ports: there a client that keeps trying can be given, and so take, the very port it calls.
RANGE = range(20_000, 32_000)


def free(wanted: int | None = None) -> int:
    """`wanted` if nobody listens there, else another one."""
    for port in [*([wanted] if wanted else []), *random.sample(RANGE, 100)]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise ServiceError(service="port", cause=f"is not to be had: {RANGE.start} to {RANGE.stop} are taken")
