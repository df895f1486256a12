"""The scorer behind a serial line: bit-level line, whole protocol, what is lost or damaged on the way."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.codec.key_block import pack_blocks, quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.serial_link import SerialLink, SerialScorer, encode_frame
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec import serial_frames as frames
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.serial_frames import Request, Status
from nearkv_hdl.top.uart_scorer import UartScorer
from nearkv_sim.golden.scorer import ScorerModel

INT8, INT4 = KeyFormat


@pytest.fixture
def job(design):
    """Blocks with planes, a query folded over them, and the scores it must give."""

    def make(formats, heads=2, seed=3):
        rng = np.random.default_rng(seed)
        blocks = quantise_keys(
            rng.standard_normal((len(formats) * design.block_tokens, 64)).astype(np.float16),
            design.block_tokens,
        )
        query = prepare_query(rng.standard_normal((heads, 64)).astype(np.float16))
        folded = fold_query(query, blocks.headers, formats, design.query_code)
        planes = [
            row[: blocks.layout.streamed_bytes(key_format)]
            for row, key_format in zip(pack_blocks(blocks), formats, strict=True)
        ]
        int8 = np.array([key_format is INT8 for key_format in formats])[:, None, None]
        codes = np.where(int8, blocks.codes, blocks.codes & np.int8(-16))
        expected = ScorerModel(design).score(codes, folded.codes, folded.shift, folded.bias)
        return planes, [design.block_tokens * (7 + index) for index in range(len(formats))], folded, expected

    return make


def test_scores_of_both_formats_equal_the_golden_model(port, design, job):
    scorer = SerialScorer(link := SerialLink(port), design)
    planes, tokens, folded, expected = job((INT8, INT4, INT8))
    scores = scorer.score(planes, tokens, folded)
    assert scores.dtype == np.int32
    assert np.array_equal(scores, expected)
    assert (link.repeats, link.damaged, scorer.dropped_frames) == (0, 0, 0)


def test_every_answer_is_of_whole_records_and_they_add_up(port, design, job):
    scorer = SerialScorer(SerialLink(port), design)
    planes, tokens, folded, expected = job((INT4, INT4))
    sizes = []
    request = scorer._request

    def watched(kind, payload=b""):
        answer = request(kind, payload)
        sizes.append(len(answer))
        return answer

    scorer._request = watched
    assert np.array_equal(scorer.score(planes, tokens, folded), expected)
    assert max(sizes) <= frames.records_per_answer(design) * frames.record_bytes(design)
    assert all(size % frames.record_bytes(design) == 0 for size in sizes)
    assert sum(sizes) == len(expected) * frames.record_bytes(design)


def test_one_head_of_two(port, design, job):
    planes, tokens, folded, expected = job((INT4,), heads=1)
    assert np.array_equal(SerialScorer(SerialLink(port), design).score(planes, tokens, folded), expected)


class Spoiler:
    """Changes, loses or doubles every `every`-th byte, from a seeded start on."""

    def __init__(self, every, how, seed):
        self.how = how
        self.every = every
        self.count = int(np.random.default_rng(seed).integers(every))
        self.spoiled = 0

    def __call__(self, byte):
        self.count += 1
        if self.count % self.every:
            return [byte]
        self.spoiled += 1
        return {"change": [byte ^ 0x10], "lose": [], "double": [byte, byte]}[self.how]


@pytest.mark.parametrize("how", ["change", "lose", "double"])
@pytest.mark.parametrize("direction", ["spoil_sent", "spoil_received"])
def test_what_is_spoiled_is_repeated_and_never_believed(port, design, job, how, direction):
    scorer = SerialScorer(link := SerialLink(port, attempts=6), design)
    planes, tokens, folded, expected = job((INT4,))
    spoiler = Spoiler(151 if direction == "spoil_sent" else 53, how, seed=5)
    setattr(port, direction, spoiler)
    # A frame longer than the distance between faults would never arrive.
    small_frames(scorer)
    assert np.array_equal(scorer.score(planes, tokens, folded), expected)
    assert spoiler.spoiled > 1
    assert link.repeats >= 1


def small_frames(scorer):
    """Let a scorer send its beats in design requests."""
    send = scorer._send

    def in_pieces(data, kind, end_kind):
        received = b""
        for at in range(0, len(data), 64):
            piece = data[at : at + 64]
            received += send(piece, kind, end_kind if at + 64 >= len(data) else kind)
        return received

    scorer._send = in_pieces


def test_a_repeated_request_is_answered_again_but_not_carried_out_again(port, design, job):
    SerialScorer(link := SerialLink(port), design)
    planes, tokens, folded, expected = job((INT4,))
    command = frames.block_command(
        design, tokens[0], 64, INT4, tuple(folded.shift[0].tolist()), tuple(folded.bias[0].tolist())
    )
    assert link.request(Request.BLOCK, command) == (Status(0), b"")
    link.request(Request.QUERY_END, folded.codes[0].astype(np.int8).tobytes())
    pieces = [piece.tobytes() for piece in np.split(planes[0], 4)]
    records = b""
    for index, piece in enumerate(pieces):
        kind = Request.KEYS_END if index == 3 else Request.KEYS
        _, more = link.request(kind, piece)
        records += more
        for _ in range(2):  # as if the answer had been lost
            port.write(encode_frame(kind, link._sequence, piece))
            assert link._answer(kind) == bytes([0]) + more
    while len(records) < design.block_tokens * frames.record_bytes(design):
        records += link.request(Request.POLL)[1]
    words = np.frombuffer(records, "<i4").reshape(design.block_tokens, -1)
    assert np.array_equal(words[:, 1:], expected)
    assert link.request(Request.POLL) == (Status(0), b"")


def test_an_incomplete_frame_is_given_up(port, design):
    link = SerialLink(port)
    SerialScorer(link, design)
    port.write(encode_frame(Request.POLL, 99, b"")[:4])
    assert port.read(1) == b""  # until the device has given it up
    assert SerialScorer(link, design).dropped_frames == 1
    assert link.repeats == 0


def test_after_a_call_that_failed_the_next_one_is_whole(port, design, job):
    """The line dies in the middle of a block's keys, and lives again."""
    scorer = SerialScorer(SerialLink(port, attempts=2), design)
    planes, tokens, folded, expected = job((INT8, INT4))
    left = iter(range(6000))
    port.spoil_sent = lambda byte: [byte] if next(left, None) is not None else []
    with pytest.raises(DeviceTimeout, match="no answer to KEYS"):
        scorer.score(planes, tokens, folded)
    port.spoil_sent = lambda byte: [byte]
    for _ in range(2):
        assert np.array_equal(scorer.score(planes, tokens, folded), expected)


def test_keys_without_a_block_stall_and_reset_cures(port, design, job):
    scorer = SerialScorer(link := SerialLink(port), design)
    planes, tokens, folded, expected = job((INT8,))
    with pytest.raises(DeviceError, match=r"KEYS was answered with .*STALLED"):
        scorer._request(Request.KEYS, planes[0][:1024].tobytes())
    assert link.request(Request.RESET) == (Status(0), b"")
    assert np.array_equal(scorer.score(planes, tokens, folded), expected)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Request.BLOCK, bytes(3)),
        (Request.QUERY, bytes(7)),
        (Request.KEYS, b""),
        (Request.KEYS_END, bytes(12)),
        (Request.HELLO, b"?"),
        (Request.RESET, b"!"),
        (Request.POLL, bytes(8)),
    ],
)
def test_wrong_lengths_are_refused(port, kind, payload):
    link = SerialLink(port)
    assert link.request(kind, payload) == (Status.REFUSED, b"")


def test_an_unknown_kind_is_refused_and_a_misplaced_end_is_told(port, design):
    scorer = SerialScorer(link := SerialLink(port), design)
    port.write(encode_frame(0x2A, 77, b""))
    assert port.read(frames.FRAME_OVERHEAD_BYTES + 1) == encode_frame(0xAA, 77, bytes([Status.REFUSED]))
    scorer._request(Request.BLOCK, frames.block_command(design, 0, 64, INT4, (0, 0), (0, 0)))
    status, _ = link.request(Request.QUERY_END, bytes(design.lanes))
    assert status == Status.FRAMING


def test_another_device_is_refused(port):
    other = replace(get_design("tiny"), name="other", block_tokens=64)
    with pytest.raises(DeviceError, match=r"BLOCK is 0x80 .*'block_tokens': 128.*design other has 0x40"):
        SerialScorer(SerialLink(port), other)


def test_bad_arguments(port, design, job):
    scorer = SerialScorer(SerialLink(port), design)
    planes, tokens, folded, _ = job((INT8,))
    with pytest.raises(ValueError, match="block 0 has 100 bytes; allowed: 8192"):
        scorer.score([planes[0][:100]], tokens, folded)
    with pytest.raises(ValueError, match="0 blocks and 1 first tokens for 1 folded blocks"):
        scorer.score([], tokens, folded)
    with pytest.raises(ValueError, match=r"first_token is 4294967169; allowed: 0 to 4294967168"):
        scorer.score(planes, [(1 << 32) - 127], folded)
    with pytest.raises(ValueError, match="attempts is 0"):
        SerialLink(port, attempts=0)
    with pytest.raises(ValueError, match="payload has 1025 bytes; allowed: up to 1024"):
        encode_frame(Request.KEYS, 0, bytes(1025))
    with pytest.raises(ValueError, match="query_bits is 10; a serial scorer allows: 8"):
        UartScorer(get_design("alveo_u50"), 8, 100)
    for arguments, reason in (((3, 100), "divisor is 3; allowed: from 4"), ((4, 1), "timeout is 1; allowed")):
        with pytest.raises(ValueError, match=reason):
            UartScorer(design, *arguments)


def test_identity_is_whole(port, design):
    link = SerialLink(port)
    status, answer = link.request(Request.HELLO)
    assert status == 0
    words = np.frombuffer(answer, "<u4").tolist()
    assert words == [*reg.identity_values(design).values(), 0]
