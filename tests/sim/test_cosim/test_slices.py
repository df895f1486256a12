"""Our slices of CXXRTL values against the runtime's own, over every position of values of several widths."""

import subprocess
from importlib.resources import files

from nearkv_sim.cosim.build import find_compiler
from nearkv_sim.cosim.export import cxxrtl_include_dir

# Reads and writes every slice of a value with both; `rtrunc`, `trunc` and `blit` are the runtime's.
SOURCE = """
#include "slices.hpp"
#include <cstdio>
#include <utility>
using namespace cxxrtl;

template<size_t Bits> value<Bits> noise(uint32_t seed) {
    value<Bits> v;
    for (size_t n = 0; n < v.chunks; n++)
        v.data[n] = seed = seed * 1664525u + 1013904223u;
    v.data[v.chunks - 1] &= v.msb_mask;
    return v;
}

int faults = 0, slices = 0;

template<size_t Bits, size_t Start, size_t Width> void check() {
    if constexpr (Start + Width <= Bits) {
        constexpr size_t Stop = Start + Width - 1;
        const value<Bits> constant = noise<Bits>(Start);
        value<Bits> from = noise<Bits>(Width), to = from;
        const value<Width> part = noise<Width>(Bits + Stop);
        faults += constant.template slice<Stop, Start>().val()
            != constant.template rtrunc<Bits - Start>().template trunc<Width>();
        faults += from.template slice<Stop, Start>().val()
            != from.template rtrunc<Bits - Start>().template trunc<Width>();
        to.template slice<Stop, Start>() = part;
        faults += to != from.template blit<Stop, Start>(part);
        slices++;
    }
}

template<size_t Bits, size_t Width, size_t... Starts> void starts(std::index_sequence<Starts...>) {
    (check<Bits, Starts, Width>(), ...);
}

template<size_t Bits> void widths() {
    starts<Bits, 1>(std::make_index_sequence<Bits>());
    starts<Bits, 32>(std::make_index_sequence<Bits>());
    starts<Bits, 33>(std::make_index_sequence<Bits>());
    starts<Bits, 70>(std::make_index_sequence<Bits>());
}

int main() {
    widths<1>();
    widths<32>();
    widths<70>();
    std::printf("%d %d\\n", slices, faults);
}
"""


def test_slices_equal_the_runtimes(tmp_path):
    (tmp_path / "check.cpp").write_text(SOURCE)
    ours = files("nearkv_sim.cosim")
    includes = [f"-I{ours}", f"-I{cxxrtl_include_dir()}"]
    program = tmp_path / "check"
    subprocess.run(
        [
            *find_compiler().command,
            "-std=c++20",
            "-fsanitize=undefined",
            *includes,
            "-o",
            program,
            tmp_path / "check.cpp",
        ],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    count = sum(max(0, bits - width + 1) for bits in (1, 32, 70) for width in (1, 32, 33, 70))
    assert done.stdout.split() == [str(count), "0"]
    assert not done.stderr
