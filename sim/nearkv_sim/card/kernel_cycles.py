"""What a job costs the kernel beside its scorer: descriptors, headers and codes to read, results to write."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, SCORE_BYTES, KeyFormat, query_code_bytes
from nearkv_sim.golden.scorer_timing import FullRate, job_timing
from nearkv_sim.hardware.link_pipe import PS_PER_S

READ_LATENCY_PS = 100_000  # address to first beat of a DDR4 controller, assumed

# Latencies of nearkv_hdl.top and nearkv_hdl.bus; a test compares whole jobs with the RTL.
_FIRST_ASK = 3  # start of the job to the first command: sizes of the results, verdict on the arguments, pass
_ADDRESS = 5  # command to address: AxiReader, and AxiWriter
_ANSWER = 1  # the memory's latency counts from the cycle behind the address's
_DATA = 2  # beat on the bus to beat out of AxiReader, and to its status
_LANDED = 1  # status of a read to its first descriptor
_KEPT = 2  # last beat to the last descriptor, through the queue of DescriptorFetch
_CHECK = 2  # descriptor to verdict: DescriptorCheck
_TURN = 3  # the last verdict to the second pass: count, end of the check, reset between the passes
_ADDRESSES_PER_BLOCK = 2  # of a block to the next: header, codes
_REQUEST = 2  # place in the queue to address: AxiReader
_QUEUE = 2  # verdict to block command out of BlockDispatch
_PACK = 1  # score, or pair, to the beat that it completes
_CHUNK = 2  # a chunk's last beat to its write command
_WRITE = 2  # address to the first beat that the memory takes, both by way of AxiWriter's queue
_END = 4  # last beat to the end of the job: response, status (2), count
# Sizes of queues: descriptors of a read and reads ahead (DescriptorFetch), beats of the two readers and a
# burst (ReadPort), blocks whose keys are asked for (KeyReads), beats of a write (ResultWriter).
_LIST_READ, _LIST_READS = 16, 4
_LIST_QUEUE_BEATS, KEY_QUEUE_BEATS, _BURST_BEATS = 128, 512, 16
_BLOCKS_AHEAD = 8
_KEY_COMMANDS = 3  # that the key reader takes before its first address: WindowCheck, BurstSplitter
_BANKS = 2  # of QueryBuffer
_CHUNK_BEATS = 16


class MemoryFeed(FullRate):
    """The scorer's sources when all comes through the read ports, as `nearkv_hdl.top.job_reads` asks for it.

    Formula: a job pays the memory's latency three times. The first pass takes one and the beats of the
    descriptor list; the second begins with one and the list's first read, up to 16 descriptors, which comes
    whole before the first block is asked for, with one more. From then on keys and lists (descriptors,
    headers, codes) share the port: a beat a cycle, in turns while both are due. Lists come a few blocks ahead
    of the keys that are streamed; keys come as far ahead as their reader's queue is deep. A port that has no
    beat to spare thus gives each block the time of all its beats, and lanes that are slower hide the lists.
    With several key masters blocks are taken to lie in the banks of all in turn, so that behind the first
    block the port has beats for lists while the others bring keys.
    Cycles count as CYCLES does, 0 being that of the job's start.

    Args:
        design: the kernel's.
        head_dim: of the job.
        key_formats: of its blocks, in order.
        heads: of the job.
        latency: cycles from an address to its first beat.

    """

    def __init__(
        self, design: DesignConfig, head_dim: int, key_formats: Sequence[KeyFormat], heads: int, latency: int
    ) -> None:
        super().__init__(design, [head_dim] * len(key_formats))
        self._blocks = len(key_formats)
        self._key_beats = [design.bus_beats(head_dim, key_format) for key_format in key_formats]
        self._latency, self._masters = latency, design.key_masters
        self._descriptor_beats = _beats(design, DESCRIPTOR_BYTES)
        code_bytes = query_code_bytes(design.query_bits)
        code_beats = _beats(design, heads * head_dim * code_bytes)
        self._block_beats = _beats(design, HEADER_BYTES) + code_beats
        self._ahead = min(_BLOCKS_AHEAD, _BANKS + _LIST_QUEUE_BEATS // self._block_beats)
        # QueryFeed takes a beat in a cycle, or gives a row in it.
        rows = heads * design.lane_beats_per_token(head_dim)
        self._query_cycles = code_beats + rows
        self._spare_rows = design.query_beats(head_dim) - rows  # zeros for the heads that the job leaves
        self._preloaded = _beats(design, design.lanes * code_bytes)

        turn, _ = self._read_list(_FIRST_ASK, self._blocks)
        first_read = min(_LIST_READ, self._blocks)
        verdict, list_end = self._read_list(turn + _CHECK + _TURN, first_read)
        self._first_verdict = verdict - first_read + 1 + _CHECK
        self._begin(list_end, self._list_beats(0) - first_read * self._descriptor_beats, code_beats)
        self._taken: list[tuple[int, int, int]] = []  # by block: index of its first beat, cycles of both ends
        self._streamed = 0  # key beats of the blocks before

    def _begin(self, list_end: int, descriptors: int, code_beats: int) -> None:
        """Serve the second pass up to the first key beat, and to the first block's codes.

        Args:
            list_end: cycle of the last beat of the list's first read.
            descriptors: list beats that are asked for behind it.
            code_beats: of a block.

        """
        addresses = self._first_verdict + _ADDRESS
        answered = addresses + _ANSWER + self._latency
        # Addresses of lists go first, as far as their queue has room and the key reader takes commands.
        room = _LIST_QUEUE_BEATS - max(0, descriptors - (addresses - list_end))
        blocks = min(self._blocks, _KEY_COMMANDS, max(0, room) // self._block_beats)
        keys = answered + blocks * (1 + -(-code_beats // _BURST_BEATS))
        header = max(_last(list_end + 1, descriptors, keys) + 1, answered)
        codes_end = _last(header, self._block_beats, keys)
        codes = codes_end if code_beats == 1 else _last(header, self._block_beats - code_beats + 1, keys)
        self._first_queries = _DATA + max(codes + self._query_cycles - 1, codes_end + 1)
        self._port = keys - 1  # cycle of the last beat
        early = min(descriptors, keys - list_end - 1) + max(0, keys - header)
        self._due = -early  # list beats that wait for the port
        self._asked = self._list_beats(0) - descriptors

    def _read_list(self, ask: int, count: int) -> tuple[int, int]:
        """When the last of the list's first `count` descriptors leaves its queue, and its last beat came."""
        left = [ask - 1] * _LIST_READS
        bus_end = 0
        for index, first in enumerate(range(0, count, _LIST_READ)):
            size = min(_LIST_READ, count - first)
            asked = max(ask + index, left[-_LIST_READS] + 1)
            first_beat = max(asked + _ADDRESS + _ANSWER + self._latency, bus_end + 1)
            bus_end = first_beat + size * self._descriptor_beats - 1
            first_out = max(bus_end + _DATA + _LANDED, left[-1] + 1)
            left.append(max(first_out + size - 1, bus_end + _DATA + _KEPT))
        return left[-1], bus_end

    def _list_beats(self, blocks: int) -> int:
        """List beats of the second pass up to the headers and codes of so many blocks."""
        places = _LIST_READ * _LIST_READS
        descriptors = min(self._blocks, places + blocks // _LIST_READ * _LIST_READ)
        return descriptors * self._descriptor_beats + blocks * self._block_beats

    def command(self, block: int, /) -> int:
        """When the block's command is there; from now on its keys use the port."""
        beats = self._list_beats(min(block + 1 + self._ahead, self._blocks))
        self._due = max(self._due + beats - self._asked - self._elsewhere(block), min(self._due, 0))
        self._asked = beats
        start = max(self._port, self._room(self._streamed) - 1)
        self._due = max(0, self._due - (start - self._port))
        self._port = start
        return self._first_verdict + _QUEUE + _ADDRESSES_PER_BLOCK * block

    def _elsewhere(self, block: int) -> int:
        """Beats that the port has for lists while the block's keys come through all masters alike."""
        if block == 0:
            return 0
        return self._key_beats[block] * (self._masters - 1) // self._masters

    def last_query(self, block: int, command: int, /) -> int:
        """A beat or a row in a cycle; of the first block as its codes come."""
        last = command + self._query_cycles - self._preloaded
        if block == 0:
            last = max(last, self._first_queries)
        return last + self._spare_rows

    def row(self, row: int, /) -> int:
        """When the beat is out of the reader."""
        on_bus = self._port + row + 1 + min(row + 1, self._due)
        return max(on_bus, self._room(self._streamed + row)) + _DATA

    def taken(self, first: int, last: int, /) -> None:
        """The block's beats have left the port, and the reader's queue."""
        beats = self._key_beats[len(self._taken)]
        self._taken.append((self._streamed, first, last))
        in_turns = min(beats, self._due)
        self._port = max(self._port + beats + in_turns, self._room(self._streamed + beats - 1))
        self._due -= in_turns
        self._streamed += beats

    def _room(self, beat: int) -> int:
        """Cycle in which a key beat can be on the bus, since the queue has room for its burst."""
        index = beat + _BURST_BEATS - KEY_QUEUE_BEATS
        if index < 0 or index >= self._streamed:
            return 0
        block = bisect_right(self._taken, index, key=lambda taken: taken[0]) - 1
        start, first, last = self._taken[block]
        left = first + (last - first) * (index - start) // max(1, self._key_beats[block] - 1)
        return left + _REQUEST + _ANSWER + self._latency


@lru_cache(maxsize=1024)
def reading_cycles(
    design: DesignConfig,
    head_dim: int,
    key_formats: tuple[KeyFormat, ...],
    heads: int,
    read_latency_ps: int,
) -> int:
    """Cycles by which a job's last score is later than that of the scorer with sources of full rate.

    Formula: `golden.scorer_timing.job_timing` with MemoryFeed, less the same with full rate.

    Args:
        design: the kernel's.
        head_dim: of the job.
        key_formats: of its blocks, in order.
        heads: of the job, up to the query group.
        read_latency_ps: of the memory, from address to first beat.

    """
    latency = -(-read_latency_ps // (PS_PER_S // design.clock_hz))
    head_dims = [head_dim] * len(key_formats)
    feed = MemoryFeed(design, head_dim, key_formats, heads, latency)
    return (
        job_timing(design, head_dims, key_formats, feed).cycles
        - job_timing(design, head_dims, key_formats).cycles
    )


def writing_cycles(design: DesignConfig, result_bytes: int) -> int:
    """Cycles from a job's last score, or pair, to its end: the last chunk is written and acknowledged.

    Formula: chunks of ResultWriter, `min(16 beats, a block's scores of one head)`; of the last one each beat
    takes a cycle. Those before it are written while scores still come.
    """
    chunk_beats = min(_CHUNK_BEATS, _beats(design, design.block_tokens * SCORE_BYTES))
    last_beats = (_beats(design, result_bytes) - 1) % chunk_beats + 1
    return _PACK + _CHUNK + _ADDRESS + _WRITE + last_beats - 1 + _END


def _last(start: int, beats: int, shared_from: int) -> int:
    """Cycle of the last of some list beats, which have the port alone until keys take every second beat."""
    alone = min(beats, max(0, shared_from - start))
    return start + alone + 2 * (beats - alone) - 1


def _beats(design: DesignConfig, nbytes: int) -> int:
    return -(-nbytes // design.bus_bytes)
