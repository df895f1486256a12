"""BAR0 behind the integrated block's model."""

import pytest

from nearkv_hdl.pcie.completer import Completer
from nearkv_hdl.pcie.controller import BAR_ADDRESS_BITS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCH = "nearkv_sim.benches.pcie_completer_bench"


def test_completer():
    result = run_bench(
        Completer(BAR_ADDRESS_BITS),
        BENCH,
        name="pcie-completer",
        simulator=available_simulators()[0],
        seed=41,
    )
    assert len(result.passed) == 5


@pytest.mark.parametrize("address_bits", [3, 33])
def test_bars_it_cannot_serve(address_bits):
    with pytest.raises(ValueError, match=f"address_bits is {address_bits}; allowed: 4 to 32"):
        Completer(address_bits)
