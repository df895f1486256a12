"""Gathers, kernels, PIM attention and INT4 scans as a runtime asks for them."""

from __future__ import annotations

import pytest

from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.machine_gather import READS_IN_FLIGHT, SEED, touched_pages
from nearkv_sim.hardware.roofline import Kernel, kernel_time
from nearkv_sim.hardware.ssd.workloads import random_read

GIB = 2**30
PS_PER_S = 10**12


def test_touched_pages_by_hand():
    """A tenth of 256-byte rows touches 1 − 0.9¹⁶ of the 4 KiB pages; a row of a page's size its own."""
    assert touched_pages(409_600, 256, 4_096_000, 4096) == -int(-(1000 * (1 - 0.9**16)) // 1) == 815
    assert touched_pages(409_600, 4096, 4_096_000, 4096) == 100
    assert touched_pages(409_600, 8192, 4_096_000, 4096) == 100
    assert touched_pages(4_096_000, 256, 4_096_000, 4096) == 1000
    assert touched_pages(1, 256, 4_096_000, 4096) == 1


def test_a_sparse_gather_is_the_drives_random_reads(hillinfer):
    """Half the pages of one walk, few enough to be read at random, each with one useful row."""
    pages, region = 512, 64 * GIB
    timing = hillinfer.gather("nand", "host_memory", pages * 256, 256, region)
    measured = random_read(hillinfer.memories["nand"].config, READS_IN_FLIGHT, pages, nbytes=4096, seed=SEED)
    assert timing.busy_ps["nand"] == pytest.approx(pages / measured.commands_per_s * PS_PER_S, rel=0.01)
    together = hillinfer.transfer("nand", "host_memory", pages * 256)
    assert timing.time_ps > 4 * together.time_ps
    assert timing.busy_ps["smartssd_link"] == together.busy_ps["smartssd_link"]


def test_a_dense_gather_reads_the_whole_region(hillinfer):
    region = 64 << 20
    timing = hillinfer.gather("nand", "host_memory", region // 2, 256, region)
    assert timing.busy_ps["nand"] == hillinfer.transfer("nand", "host_memory", region).busy_ps["nand"]


@pytest.mark.parametrize(
    ("source", "target", "stage"),
    [("nand", "card_memory", "peer_to_peer"), ("host_memory", "gpu_memory", "host_memory")],
)
def test_scattered_is_never_faster_than_together(hillinfer, source, target, stage):
    nbytes = 4 << 20
    pieces = [
        hillinfer.gather(source, target, nbytes, piece, GIB).busy_ps[stage] for piece in (64, 512, 4096)
    ]
    assert pieces[0] == max(pieces)
    assert min(pieces) >= hillinfer.transfer(source, target, nbytes).busy_ps[stage]
    bound = hillinfer.stages(source, target)[0].bound_bytes_per_s
    assert nbytes * PS_PER_S <= bound * min(pieces)


def test_a_kernel_is_the_roofline_of_equal_shares():
    machine = open_machine("dgx_h100")
    flops, nbytes = 8 * 10**12, 8 * 10**9
    timing = machine.compute("gpus", flops, nbytes)
    share = kernel_time(machine.unit("gpus").config, Kernel("x", flops // 8, nbytes // 8))
    assert timing.time_ps == share.time_ps
    assert timing.nbytes == nbytes


def test_pim_attention_reads_each_row_once_for_its_group():
    machine = open_machine("pam")
    grouped = machine.attend("ssd_units", 4096, 64, 8, 128)
    single = machine.attend("ssd_units", 4096, 64, 64, 128)
    assert grouped.nbytes * 8 == single.nbytes
    assert grouped.busy_ps["ssd_units"] == single.busy_ps["ssd_units"]
    assert grouped.busy_ps["ssd_pim"] < single.busy_ps["ssd_pim"]
    in_dram = machine.attend("hbm_units", 4096, 64, 8, 128)
    assert "hbm_pim" not in in_dram.busy_ps
    assert in_dram.busy_ps["hbm_units"] == machine.unit("hbm_units").attention_ps(4096, 64, 128)["hbm_units"]


def test_int4_halves_the_bytes_but_not_the_lanes_beats(hillinfer):
    eight = hillinfer.scan("fpga", 64 << 20)
    four = hillinfer.scan("fpga", 32 << 20, code_bits=4)
    assert four.busy_ps["fpga"] == pytest.approx(eight.busy_ps["fpga"], rel=0.001)
    assert four.busy_ps["card_memory"] == pytest.approx(eight.busy_ps["card_memory"] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda m: m.gather("nand", "host_memory", 10, 1, 9),
            "nbytes is 10; allowed: at most region_bytes, 9",
        ),
        (lambda m: m.gather("nand", "host_memory", 10, 0, 90), "piece_bytes is 0"),
        (lambda m: m.gather("nand", "tape", 1, 1, 1), "tier is 'tape'"),
        (lambda m: m.compute("fpga", 1, 1), "processor is 'fpga', which runs no kernels"),
        (lambda m: m.compute("gpu", 0, 1), "flops is 0"),
        (lambda m: m.attend("gpu", 1, 1, 1, 128), "processor is 'gpu', which is no PIM unit"),
        (lambda m: m.attend("gpu", 0, 1, 1, 128), "tokens is 0"),
        (lambda m: m.scan("cpu", 1, code_bits=4), "code_bits of cpu is 4"),
        (lambda m: m.scan("fpga", 1, code_bits=2), "code_bits of fpga is 2; allowed: 4 or 8"),
    ],
)
def test_bad_queries_are_refused(hillinfer, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(hillinfer)


def test_heads_that_do_not_share_kv_heads_are_refused():
    with pytest.raises(ValueError, match="query_heads is 3; allowed: a multiple of 2"):
        open_machine("pam").attend("hbm_units", 1, 3, 2, 128)
