"""The host's end of the serial line alone: late answers, silence, noise, its port and its commands."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from nearkv.codec.query import FoldedQuery
from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.serial_link import SerialLink, SerialScorer, encode_frame, open_serial
from nearkv_hdl.attention.query_buffer import command_layout
from nearkv_hdl.platforms.ulx3s import TIMEOUT_MS
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec import serial_frames as frames
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.serial_frames import Request, Status
from nearkv_sim.cosim.words import pack_words


class Answering:
    """A device that answers `reply(number of the frame)` to every frame, or nothing."""

    def __init__(self, reply):
        self.reply = reply
        self.frames = 0
        self.arriving = b""

    def write(self, data):
        self.frames += 1
        self.arriving += self.reply(self.frames, *data[1:3])

    def read(self, size):
        taken, self.arriving = self.arriving[:size], self.arriving[size:]
        return taken


def test_an_answer_that_comes_late_is_not_taken_for_the_next_ones():
    """The first answer comes with the second, so that one is left when the next request is sent."""
    late = []

    def reply(number, kind, sequence):
        answer = encode_frame(kind | frames.ANSWER, sequence, bytes([0, number]))
        late.append(answer)
        return b"" if number == 1 else b"".join(late[-2:]) if number == 2 else answer

    link = SerialLink(Answering(reply))
    assert link.request(Request.POLL) == (Status(0), b"\1")
    assert link.request(Request.POLL) == (Status(0), b"\3")
    assert (link.repeats, link.damaged) == (1, 1)


def test_sequences_wrap_around():
    link = SerialLink(
        Answering(
            lambda _, kind, sequence: encode_frame(kind | frames.ANSWER, sequence, bytes([0, sequence]))
        )
    )
    seen = [link.request(Request.POLL)[1][0] for _ in range(600)]
    assert seen == [(1 + number) % 256 for number in range(600)]


@pytest.mark.parametrize("nbytes", [0, 3, 4])
def test_an_identity_of_another_length_is_another_device(nbytes):
    port = Answering(
        lambda _, kind, sequence: encode_frame(
            kind | frames.ANSWER, sequence, bytes(1 + nbytes * (kind == Request.HELLO))
        )
    )
    with pytest.raises(DeviceError, match=f"identity has {nbytes} bytes; design tiny has"):
        SerialScorer(SerialLink(port), get_design("tiny"))


def folded_with(code):
    zeros = np.zeros((1, 2), np.int64)
    codes = np.full((1, 2, 64), code, np.int16)
    return FoldedQuery(codes, zeros, zeros, zeros[0], (KeyFormat.INT4,))


def scoring(tokens):
    """A device of design tiny that gives records of these tokens, scores 0, however it is asked for them."""
    design = get_design("tiny")
    records = np.zeros((len(tokens), 1 + design.query_group), "<u4")
    records[:, 0] = tokens
    room = frames.records_per_answer(design)
    polls = [records[at : at + room].tobytes() for at in range(0, len(tokens), room)]
    identity = np.array([*reg.identity_values(design).values(), 0], "<u4").tobytes()

    def reply(_, kind, sequence):
        payload = b"\0"
        if kind == Request.HELLO:
            payload += identity
        if kind == Request.POLL and polls:
            payload += polls.pop(0)
        return encode_frame(kind | frames.ANSWER, sequence, payload)

    return SerialScorer(SerialLink(Answering(reply)), design)


@pytest.mark.parametrize(
    ("tokens", "error", "reason"),
    [
        (range(256, 384), None, ""),
        (range(257, 385), DeviceError, "scores are not those of tokens from 256"),
        ([*range(256, 383), 256], DeviceError, "scores are not those"),
        (range(256, 390), DeviceError, "scores are not those"),
        (range(256, 383), DeviceTimeout, "1524 of 1536 bytes of scores came"),
    ],
)
def test_only_the_blocks_own_tokens_are_taken(tokens, error, reason):
    with pytest.raises(error, match=reason) if error else nullcontext():
        scores = scoring(tokens).score([np.zeros(4096, np.uint8)], [256], folded_with(0))
        assert scores.shape == (128, 2)


def test_codes_of_a_longer_query_are_refused():
    with pytest.raises(ValueError, match=r"query codes reach 128; allowed: -127 to 127"):
        scoring(range(128)).score([np.zeros(4096, np.uint8)], [0], folded_with(128))


@pytest.mark.parametrize(
    ("first_token", "shift", "reason"),
    [
        (-1, (0, 0), r"first_token is -1; allowed: 0 to 4294967168"),
        (0, (0,), r"1 shifts and 2 biases; allowed: 2 of each"),
    ],
)
def test_bad_commands_are_refused(first_token, shift, reason):
    with pytest.raises(ValueError, match=reason):
        frames.block_command(get_design("tiny"), first_token, 64, KeyFormat.INT8, shift, (0, 0))


def test_no_answer_and_noise_are_bounded():
    class Dead:
        def __init__(self, noise):
            self.noise = noise
            self.reads = 0
            self.writes = 0

        def read(self, size):
            self.reads += 1
            return self.noise[:1] * size

        def write(self, data):
            assert data[0] == frames.START
            self.writes += 1

    for noise in (b"", b"\0", bytes([frames.START])):
        dead = Dead(noise)
        with pytest.raises(DeviceTimeout, match="no answer to RESET in 3 attempts"):
            SerialScorer(SerialLink(dead, attempts=3), get_design("tiny"))
        assert dead.writes == 3
        assert dead.reads < 3 * 4 * 1100


def test_a_port_is_opened_with_pyserial_if_it_is_there(monkeypatch):
    opened = []
    module = SimpleNamespace(Serial=lambda *place, **options: opened.append((place, options)) or "port")
    monkeypatch.setitem(sys.modules, "serial", module)
    assert open_serial("/dev/ttyUSB0", 500_000) == "port"
    (((path, baud), options),) = opened
    assert (path, baud, list(options)) == ("/dev/ttyUSB0", 500_000, ["timeout"])
    # The device gives a request up earlier than the host its answer.
    assert options["timeout"] * 1000 > 2 * TIMEOUT_MS
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(ValueError, match=r"extra `serial` installs: pip install -e '.\[serial\]'"):
        open_serial("/dev/ttyUSB0")


@pytest.mark.parametrize("name", ["tiny", "ulx3s_85f"])
def test_the_hosts_command_is_the_scorers(name):
    design = get_design(name)
    rng = np.random.default_rng(4)
    group = design.query_group
    for key_format in KeyFormat:
        shift, bias = rng.integers(0, 8, group), rng.integers(-(1 << 31), 1 << 31, group)
        words = pack_words(
            command_layout(design),
            first_token=np.array([0xFEDC_BA98]),
            head_dim_index=np.array([len(design.head_dims) - 1]),
            key_format=np.array([int(key_format)]),
            shift=shift[None],
            bias=bias[None],
            last=np.array([0]),
        )
        packed = frames.block_command(
            design, 0xFEDC_BA98, design.head_dims[-1], key_format, tuple(shift.tolist()), tuple(bias.tolist())
        )
        assert int.from_bytes(packed, "little") == int.from_bytes(words[0].astype("<u4").tobytes(), "little")
        assert frames.command_bits(design) == command_layout(design).size
