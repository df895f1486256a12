"""How transfers are cut into TLPs, byte by byte; every analytic and simulated link shares these functions."""

from itertools import pairwise

import pytest

from nearkv_sim.golden.pcie_requests import split_read
from nearkv_sim.hardware.pcie_tlp import padded_bytes, split_completion, split_request

STARTS = (*range(6), 61, 64, 127, 128, 4093, 4096 - 128, 5 << 40)
LENGTHS = (*range(1, 10), 63, 64, 127, 128, 129, 255, 256, 300, 4096, 4097, 9000)
PAGE_BYTES, DWORD_BYTES = 4096, 4


def touched(address, nbytes, unit):
    """How many aligned blocks of `unit` bytes hold one of the bytes."""
    return len({at // unit for at in range(address, address + nbytes)})


def ends(pieces):
    """Where each piece ends, and that they follow each other."""
    for (at, size), (following, _) in pairwise(pieces):
        assert at + size == following
    return [at + size for at, size in pieces]


@pytest.mark.parametrize("limit_bytes", [128, 256, 4096])
def test_requests_are_legal_and_as_few_as_possible(limit_bytes):
    def is_legal(at, size):
        dwords = touched(at, size, DWORD_BYTES)
        return touched(at, size, PAGE_BYTES) == 1 and DWORD_BYTES * dwords <= limit_bytes

    for start in STARTS:
        for nbytes in LENGTHS:
            pieces = list(split_request(start, nbytes, limit_bytes))
            assert pieces[0][0] == start
            assert ends(pieces)[-1] == start + nbytes
            assert all(size > 0 and is_legal(at, size) for at, size in pieces)
            # A piece of one byte more would not be: nothing in fewer pieces is.
            assert not any(is_legal(at, size + 1) for at, size in pieces[:-1])


@pytest.mark.parametrize("limit_bytes", [128, 512])
def test_whole_beats_are_cut_as_by_the_hardware(limit_bytes):
    # The RTL cuts at multiples of the limit, which is the same for a start at one.
    for start in (0, 2 * limit_bytes, PAGE_BYTES - limit_bytes):
        beats = (PAGE_BYTES - start) // 64
        golden = [(one.address, DWORD_BYTES * one.dwords) for one in split_read(start, beats, limit_bytes)]
        assert list(split_request(start, 64 * beats, limit_bytes)) == golden


@pytest.mark.parametrize(("limit_bytes", "boundary"), [(128, 64), (128, 128), (256, 64), (512, 128)])
def test_completions_end_on_the_last_boundary_in_reach(limit_bytes, boundary):
    for start in STARTS:
        for nbytes in LENGTHS:
            pieces = list(split_completion(start, nbytes, limit_bytes, boundary))
            assert pieces[0][0] == start
            *inner, final = ends(pieces)
            assert final == start + nbytes
            assert not any(end % boundary for end in inner)
            for at, size in pieces:
                assert 0 < DWORD_BYTES * touched(at, size, DWORD_BYTES) <= limit_bytes
            # The next boundary is out of reach.
            assert all(size + boundary > limit_bytes for _, size in pieces[:-1])


def test_payload_is_padded_to_the_doublewords_it_touches():
    for start in range(8):
        for nbytes in range(1, 40):
            assert padded_bytes(start, nbytes) == DWORD_BYTES * touched(start, nbytes, DWORD_BYTES)
