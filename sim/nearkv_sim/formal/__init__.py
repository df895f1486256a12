"""Proofs over components: Yosys lowers them to an and-inverter graph, ABC proves or refutes.

The same few helpers serve every component: `prove_stream_contract` for the rules every stream keeps,
`prove_ready_independent` for inputs that do not wait for a token, `prove_no_deadlock` for freedom from
deadlock, `prove_progress` and `prove_order` for components that pass tokens through, and `prove` for a bench
of one's own. Needs the extra `formal`. In a test:

    def make():
        return ExpUnit(tag_bits=2)

    assert prove_stream_contract(make).status is Status.PROVED
    assert prove_progress(make, within=6, capacity=6).status is Status.PROVED
    assert prove_order(make, capacity=6, field="tag").status is Status.PROVED

A refuted proof names the broken rule in its `message` and lists the inputs in `counterexample`;
`Bench.replay` turns them into a waveform.
"""

from nearkv_sim.formal.bench import Bench
from nearkv_sim.formal.engine import Proof, Status, prove
from nearkv_sim.formal.progress import prove_no_deadlock, prove_progress
from nearkv_sim.formal.properties import prove_order, prove_ready_independent, prove_stream_contract

__all__ = [
    "Bench",
    "Proof",
    "Status",
    "prove",
    "prove_no_deadlock",
    "prove_order",
    "prove_progress",
    "prove_ready_independent",
    "prove_stream_contract",
]
