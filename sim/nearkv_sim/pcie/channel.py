"""Messages between the transport and its simulator: pickled objects, each behind its length, on a socket.

Both ends are ours, on a socket in a folder that only their user can enter.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

SOCKET_NAME = "socket"
_LENGTH = struct.Struct("<Q")


class Channel:
    """One end. `receive` raises EOFError when the other has gone, TimeoutError after the socket's timeout."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, message: Any) -> None:
        """Send one message; OSError if the other has gone."""
        content = pickle.dumps(message)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, timeout_seconds: float | None = None) -> Any:
        """Wait for one message; None waits for ever."""
        self._socket.settimeout(timeout_seconds)
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def close(self) -> None:
        """Close this end; twice is allowed."""
        self._socket.close()

    def _exactly(self, nbytes: int) -> bytes:
        content = bytearray()
        while len(content) < nbytes:
            part = self._socket.recv(min(nbytes - len(content), 1 << 20))
            if not part:
                raise EOFError("the other end has gone")
            content += part
        return bytes(content)
