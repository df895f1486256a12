"""All that a job reads: descriptors, headers, codes and planes, from the memory to check and scorer."""

from __future__ import annotations

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.bus.bank_readers import BankReaders
from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.crc32c import CRC_BITS
from nearkv_hdl.bus.job_control import Fault
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.registers import ErrorCode
from nearkv_hdl.top.block_dispatch import BlockDispatch
from nearkv_hdl.top.descriptor_fetch import DescriptorFetch
from nearkv_hdl.top.header_check import HeaderCheck
from nearkv_hdl.top.job_check import DescriptorCheck
from nearkv_hdl.top.key_reads import KeyReads
from nearkv_hdl.top.list_reads import ListReads
from nearkv_hdl.top.plane_check import PlaneCheck
from nearkv_hdl.top.query_feed import QueryFeed
from nearkv_hdl.top.read_port import ReadPort


class JobReads(wiring.Component):
    """Reads and judges a job's descriptors; in the second pass also its headers, codes and planes.

    Formula: see BlockDispatch; every read goes through the window that the arguments give it.
    Errors: the first of what reads met, descriptors, headers, planes and codes, in this order.
    Timing: keys at a beat per cycle, up to 512 beats (or 32 bursts) of memory latency.
    Numerics: none.
    Reset: all, only together with the bus; `clear` is the job's own.

    Args:
        design: the build.

    Members:
        arguments: of the job, stable out of `clear`.
        clear: between jobs and passes: everything but the count of reads under way is in reset.
        drains: takes what still comes, and drops it.
        stream_pass: this is the second pass.
        o_block, o_query, o_keys: as Scorer takes them.
        key_moves: a beat of keys is taken.
        key_waits: the scorer would take a beat of keys that has not come.
        o_crc: of all planes so far.
        all_taken: every descriptor has been.
        all_good: every block has been streamed, and is as its header says.
        fault: what went wrong, otherwise code NONE.
        list_idle, idle: no read of lists, or none at all, is under way.
        quiet: no beat waits to be taken.
        m_axi: AR and R.
        m_axi{i}: those of key master i, from 1.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._port = ReadPort(design.bus_bytes)
        self._masters = {i: AxiReader(design.bus_bytes) for i in range(1, design.key_masters)}
        self._lists, self._keys = ListReads(design), KeyReads(design)
        self._parts = {
            "fetch": DescriptorFetch(design.bus_bytes),
            "check": DescriptorCheck(design),
            "dispatch": BlockDispatch(design),
            "headers": HeaderCheck(design),
            "planes": PlaneCheck(design),
            "feed": QueryFeed(design),
        }
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "clear": In(1),
                "drains": In(1),
                "stream_pass": In(1),
                "o_block": Out(stream.Signature(command_layout(design))),
                "o_query": Out(stream.Signature(query_layout(design))),
                "o_keys": Out(stream.Signature(key_layout(design))),
                "key_moves": Out(1),
                "key_waits": Out(1),
                "o_crc": Out(CRC_BITS),
                "all_taken": Out(1),
                "all_good": Out(1),
                "fault": Out(Fault),
                "list_idle": Out(1),
                "idle": Out(1),
                "quiet": Out(1),
                "m_axi": Out(axi_read(64, design.bus_bytes)),
                **{f"m_axi{i}": Out(axi_read(64, design.bus_bytes)) for i in self._masters},
            }
        )

    def elaborate(self, platform):
        m = Module()
        job, port, lists, keys = self.arguments, self._port, self._lists, self._keys
        m.submodules.port, m.submodules.lists, m.submodules.keys = port, lists, keys
        for name, part in self._parts.items():
            m.submodules[name] = ResetInserter(self.clear)(part)
        fetch, check, dispatch, headers, planes, feed = self._parts.values()
        wiring.connect(m, port.m_axi, wiring.flipped(self.m_axi))
        wiring.connect(m, lists.command, port.lists_command)
        wiring.connect(m, port.lists_data, lists.beats)
        wiring.connect(m, port.lists_status, lists.status)
        self._connect_keys(m)
        for reads in (lists, keys):
            m.d.comb += [
                reads.clear.eq(self.clear),
                reads.drains.eq(self.drains),
                reads.first_token.eq(dispatch.first_token),
            ]
        for source, sink in (
            (fetch.o_command, lists.descriptor_read),
            (lists.o_descriptors, fetch.i_data),
            (fetch.o, check.i),
            (check.o, dispatch.i),
            (dispatch.o_header_read, lists.header_read),
            (dispatch.o_expected, headers.i_expected),
            (lists.o_headers, headers.i_data),
            (headers.o, planes.i_expected),
            (dispatch.o_query_read, lists.query_read),
            (dispatch.o_key_read, keys.read),
            (dispatch.o_block, feed.i_block),
            (lists.o_queries, feed.i_data),
            (keys.o_crc, planes.i),
        ):
            wiring.connect(m, source, sink)
        wiring.connect(m, feed.o_block, wiring.flipped(self.o_block))
        wiring.connect(m, feed.o_query, wiring.flipped(self.o_query))
        wiring.connect(m, keys.o_keys, wiring.flipped(self.o_keys))
        m.d.comb += [part.arguments.eq(job) for part in (lists, fetch, check, headers)]
        m.d.comb += [
            lists.descriptor_count.eq(fetch.o_count),
            fetch.landed.eq(lists.landed),
            port.lists_window_base.eq(lists.window_base),
            port.lists_window_bytes.eq(lists.window_bytes),
            port.keys_window_base.eq(job.key_address),
            port.keys_window_bytes.eq(job.key_bytes),
            keys.head_dim.eq(job.head_dim),
            planes.head_dim.eq(job.head_dim),
            planes.block_count.eq(job.block_count),
            dispatch.block_count.eq(job.block_count),
            dispatch.head_dim.eq(job.head_dim),
            dispatch.stream_pass.eq(self.stream_pass),
            feed.heads.eq(job.heads),
            self.key_moves.eq(keys.moves),
            self.o_crc.eq(planes.o_crc),
            self.all_taken.eq(dispatch.all_taken),
            self.all_good.eq(planes.all_good),
            self.list_idle.eq(lists.idle),
            self.idle.eq(lists.idle & keys.idle),
            self.quiet.eq(~lists.beats.valid & ~keys.beats.valid),
        ]
        streamed = Signal(32)  # blocks
        with m.If(self.clear):
            m.d.sync += streamed.eq(0)
        with m.Elif(keys.moves & self.o_keys.payload.last):
            m.d.sync += streamed.eq(streamed + 1)
        waits = self.o_keys.ready & ~self.o_keys.valid & (streamed != job.block_count)
        m.d.comb += self.key_waits.eq(waits & self.stream_pass)
        # A descriptor, or a header, is judged after its read.
        faults = (lists.fault, keys.fault, dispatch.fault, headers.fault, planes.fault, feed.fault)
        for one in reversed(faults):
            with m.If(one.code != ErrorCode.NONE):
                m.d.comb += self.fault.eq(one)
        return m

    def _connect_keys(self, m: Module) -> None:
        """Planes come through the port; with several masters, each through that of its block's bank."""
        design, port, keys = self.design, self._port, self._keys
        source = (port.keys_command, port.keys_data, port.keys_status)
        if self._masters:
            m.submodules.banks = banks = BankReaders(
                design.key_masters, design.key_bank_bytes, design.bus_bytes
            )
            banks.attach(m, 0, *source)
            for i, reader in self._masters.items():
                m.submodules[f"master{i}"] = reader
                banks.attach(m, i, reader.i_command, reader.o_data, reader.o_status)
                wiring.connect(m, reader.m_axi, wiring.flipped(getattr(self, f"m_axi{i}")))
                m.d.comb += [
                    reader.window_base.eq(self.arguments.key_address),
                    reader.window_bytes.eq(self.arguments.key_bytes),
                ]
            source = (banks.i_command, banks.o_data, banks.o_status)
        for one, other in zip((keys.command, keys.beats, keys.status), source, strict=True):
            wiring.connect(m, one, other)
