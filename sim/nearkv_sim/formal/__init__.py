"""Proofs over components: Yosys lowers them to an and-inverter graph, ABC proves or refutes.

The same few helpers serve every component: `prove_stream_contract` for the rules every stream keeps,
`prove_progress` for freedom from deadlock, `prove_order` for components that pass tokens through, and
`prove` for a bench of one's own. Needs the extra `formal`.
"""

from nearkv_sim.formal.bench import Bench
from nearkv_sim.formal.engine import Proof, Status, prove
from nearkv_sim.formal.properties import prove_order, prove_progress, prove_stream_contract

__all__ = [
    "Bench",
    "Proof",
    "Status",
    "prove",
    "prove_order",
    "prove_progress",
    "prove_stream_contract",
]
