"""A scorer at the end of a serial line: frames with retries, and scoring of key blocks over them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.crc import crc32c
from nearkv.codec.query import FoldedQuery
from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.transport import Bytes
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec import serial_frames as frames
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.register_map import WORD_BYTES
from nearkv_hdl.spec.serial_frames import Request, Status

DEFAULT_ATTEMPTS = 4
DEFAULT_BAUD = 1_000_000
# Longer than a board takes to answer after its own timeout, see `platforms.ulx3s`.
READ_TIMEOUT_S = 0.5
_MAX_FRAME_BYTES = frames.FRAME_OVERHEAD_BYTES + frames.MAX_PAYLOAD_BYTES


class SerialPort(Protocol):
    """The part of a `serial.Serial` that is used; any file-like object will do."""

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; fewer if they did not come within the port's timeout."""

    def write(self, data: bytes) -> int | None:
        """Send all of it."""


def encode_frame(kind: int, sequence: int, payload: bytes) -> bytes:
    """A frame as it goes over the line; ValueError for a payload that is too long."""
    if len(payload) > frames.MAX_PAYLOAD_BYTES:
        raise ValueError(f"payload has {len(payload)} bytes; allowed: up to {frames.MAX_PAYLOAD_BYTES}")
    body = bytes([kind, sequence]) + len(payload).to_bytes(2, "little") + payload
    check = crc32c(np.frombuffer(body, np.uint8))
    return bytes([frames.START]) + body + check.to_bytes(frames.CRC_BYTES, "little")


class SerialLink:
    """Requests and their answers; what is lost or damaged is repeated.

    Args:
        port: the line; its reads must have a timeout, longer than the device's.
        attempts: times a request is sent before it counts as failed, from 1.

    Attributes:
        repeats: requests that were sent again.
        damaged: frames that came with a wrong CRC, length, kind or sequence, or not whole.

    Raises ValueError for attempts below 1.

    """

    def __init__(self, port: SerialPort, attempts: int = DEFAULT_ATTEMPTS) -> None:
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}; allowed: from 1")
        self._port = port
        self._attempts = attempts
        self._sequence = 0
        self.repeats = 0
        self.damaged = 0

    def request(self, kind: Request, payload: bytes = b"") -> tuple[Status, bytes]:
        """Send a request and return its answer's status and what follows it.

        Raises:
            ValueError: a payload that is too long.
            DeviceTimeout: no good answer to any attempt.
            OSError: the port's own, such as a cable that is pulled.

        """
        self._sequence = (self._sequence + 1) % 256
        sent = encode_frame(kind, self._sequence, payload)
        for attempt in range(self._attempts):
            self.repeats += attempt > 0
            self._port.write(sent)
            answer = self._answer(kind)
            if answer is not None:
                return Status(answer[0]), answer[frames.STATUS_BYTES :]
        raise DeviceTimeout(f"serial line: no answer to {kind.name} in {self._attempts} attempts")

    def _answer(self, kind: Request) -> bytes | None:
        """Payload of the answer; None if none came, with the line silent."""
        # What is not part of a frame is skipped, but not for ever: a line may hum.
        for _ in range(_MAX_FRAME_BYTES):
            start = self._port.read(1)
            if not start:
                return None
            if start[0] != frames.START:
                continue
            header = self._port.read(frames.HEADER_BYTES)
            nbytes = int.from_bytes(header[2:], "little")
            if len(header) == frames.HEADER_BYTES and nbytes <= frames.MAX_PAYLOAD_BYTES:
                rest = self._port.read(nbytes + frames.CRC_BYTES)
                payload = rest[:nbytes]
                expected = encode_frame(kind | frames.ANSWER, self._sequence, payload)
                if nbytes >= frames.STATUS_BYTES and start + header + rest == expected:
                    return payload
            self.damaged += 1
        return None


class SerialScorer:
    """Scores key blocks on a `UartScorer`.

    Args:
        link: the line.
        design: what the device should be.

    Attributes:
        dropped_frames: frames the device had dropped since power-on, when it was asked.

    Raises:
        ValueError: a design that the protocol cannot carry.
        DeviceError: the device is another, or does not answer.

    """

    def __init__(self, link: SerialLink, design: DesignConfig) -> None:
        frames.check_design(design)
        self._link = link
        self._design = design
        self._request(Request.RESET)
        self._in_block = False  # the device may hold a part of one
        identity = self._request(Request.HELLO)
        expected = reg.identity_values(design)
        if len(identity) != WORD_BYTES * (len(expected) + 1):
            raise DeviceError(
                f"serial line: identity has {len(identity)} bytes; design {design.name} has"
                f" {WORD_BYTES * (len(expected) + 1)}"
            )
        words = np.frombuffer(identity, "<u4").tolist()
        self.dropped_frames = words.pop()
        for (register, value), found in zip(expected.items(), words, strict=True):
            if found != value:
                raise DeviceError(
                    f"serial line: {register.name} is {found:#x} {register.unpack(found) or ''}; design"
                    f" {design.name} has {value:#x} {register.unpack(value) or ''}"
                )

    def score(
        self, planes: Sequence[Bytes], first_tokens: Sequence[int], folded: FoldedQuery
    ) -> NDArray[np.int32]:
        """Score key blocks; after a call that failed, the device is reset first.

        Args:
            planes: per block uint8, its streamed bytes: both planes, or in INT4 the high one.
            first_tokens: token index of each block's first token.
            folded: the query, folded over these blocks, with at most the design's query group of heads.

        Returns:
            int32 [blocks · block_tokens, heads].

        Raises:
            ValueError: shapes that disagree, or that the design does not score; a token index out of range.
            DeviceTimeout: the device does not answer, or does not finish.
            DeviceError: it refuses, or sends other tokens than those of the blocks.

        """
        blocks, heads, head_dim = folded.codes.shape
        group = self._design.query_group
        if not 0 < blocks == len(planes) == len(first_tokens) or heads > group:
            raise ValueError(
                f"{len(planes)} blocks and {len(first_tokens)} first tokens for {blocks} folded blocks of"
                f" {heads} heads; allowed: as many of each, up to {group} heads"
            )
        largest, limit = int(np.abs(folded.codes).max()), self._design.query_code.max
        if largest > limit:
            raise ValueError(f"query codes reach {largest}; allowed: {-limit} to {limit}")
        layout = self._design.layout(head_dim)
        codes = np.zeros((blocks, group, head_dim), np.int8)
        codes[:, :heads] = folded.codes
        unused = (0,) * (group - heads)
        if self._in_block:
            self._request(Request.RESET)
            self._in_block = False
        scores = []
        for block, key_format in enumerate(folded.key_format):
            streamed_bytes = layout.streamed_bytes(key_format)
            if planes[block].nbytes != streamed_bytes:
                raise ValueError(f"block {block} has {planes[block].nbytes} bytes; allowed: {streamed_bytes}")
            shift, bias = (tuple(of[block].tolist()) + unused for of in (folded.shift, folded.bias))
            command = frames.block_command(
                self._design, first_tokens[block], head_dim, key_format, shift, bias
            )
            self._in_block = True
            received = self._request(Request.BLOCK, command)
            received += self._send(codes[block].tobytes(), Request.QUERY, Request.QUERY_END)
            received += self._send(planes[block].tobytes(), Request.KEYS, Request.KEYS_END)
            scores.append(self._collect(received, first_tokens[block])[:, :heads])
            self._in_block = False
        return np.concatenate(scores)

    def _send(self, data: bytes, kind: Request, end_kind: Request) -> bytes:
        """Send beats in as many requests as they take; the records that came back."""
        received = b""
        size = frames.MAX_PAYLOAD_BYTES
        for at in range(0, len(data), size):
            received += self._request(end_kind if at + size >= len(data) else kind, data[at : at + size])
        return received

    def _collect(self, received: bytes, first_token: int) -> NDArray[np.int32]:
        """Poll for what is missing of a block's records; int32 [block_tokens, query_group]."""
        tokens = self._design.block_tokens
        wanted = tokens * frames.record_bytes(self._design)
        while len(received) < wanted:
            more = self._request(Request.POLL)
            if not more:  # a token takes less than one request
                raise DeviceTimeout(f"serial line: {len(received)} of {wanted} bytes of scores came")
            received += more
        words = np.frombuffer(received[:wanted], "<i4").reshape(tokens, -1)
        expected = first_token + np.arange(tokens)
        if len(received) != wanted or not np.array_equal(words[:, 0].view("<u4"), expected):
            raise DeviceError(f"serial line: scores are not those of tokens from {first_token}")
        return words[:, 1:].astype(np.int32)

    def _request(self, kind: Request, payload: bytes = b"") -> bytes:
        status, answer = self._link.request(kind, payload)
        if status:
            raise DeviceError(f"serial line: {kind.name} was answered with {status!r}")
        return answer


def open_serial(path: str, baud: int = DEFAULT_BAUD) -> SerialPort:
    """Open a serial port with pyserial; ValueError if that is not installed, OSError from the port."""
    try:
        serial = importlib.import_module("serial")
    except ImportError as error:
        raise ValueError(
            "a serial port needs pyserial, which the extra `serial` installs: pip install -e '.[serial]'"
        ) from error
    port: SerialPort = serial.Serial(path, baud, timeout=READ_TIMEOUT_S)
    return port
