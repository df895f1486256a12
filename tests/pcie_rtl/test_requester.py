"""MemoryRequester between a foreign AXI manager and a foreign host, across a model of AMD's block."""

from nearkv_hdl.pcie.requester import MemoryRequester
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators

BENCHES = "nearkv_sim.benches"
SMALL = {"tags": 8, "completion_headers": 64, "completion_bytes": 5120}
LARGE = {"tags": 256, "completion_headers": 256, "completion_bytes": 32768}


def test_transfers():
    result = run_bench(
        MemoryRequester(**SMALL),
        f"{BENCHES}.pcie_requester_bench",
        name="pcie-requester-small",
        simulator=available_simulators()[0],
        seed=51,
        parameters=SMALL,
    )
    assert len(result.passed) == 4
