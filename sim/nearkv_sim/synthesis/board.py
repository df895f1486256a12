"""Place and route of whole boards: pins, clock, bitstream that can be loaded."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.verilog import rtlil_to_verilog
from nearkv_sim.synthesis.nextpnr import Router
from nearkv_sim.synthesis.placement import Placement, route_seeds

BOARDS = ("ulx3s",)
BOARD_DESIGN = "ulx3s_85f"
BOARD_MODULE = "nearkv_board"
BOARD_CAVEATS = (
    "The serial scorer with the board's pins; the clock is constrained to the oscillator's 25 MHz, so that"
    " nothing makes the router look for the highest.",
    "Fmax is nextpnr's static timing at the slow corner of the speed grade. No board has been loaded.",
)


def place_board(
    board: str,
    design: DesignConfig,
    seeds: Iterable[int],
    progress: Callable[[int], None] = lambda _: None,
    limit_s: float | None = None,
) -> Placement:
    """Place, route and pack a board's design; arguments as of `route_seeds`.

    Raises ValueError for an unknown board, a design of another part or without amaranth-boards; otherwise as
    `route_seeds`.
    """
    if board not in BOARDS:
        raise ValueError(f"board is {board!r}; allowed: {', '.join(BOARDS)}")
    if importlib.util.find_spec("amaranth_boards") is None:
        raise ValueError(
            "a board needs amaranth-boards, which the extra `boards` installs: pip install -e '.[boards]'"
        )
    # Imported late, for this reason.
    from nearkv_hdl.platforms.ulx3s import Ulx3s85F, Ulx3sUartScorer

    plan = Ulx3s85F().build(Ulx3sUartScorer(design), name=BOARD_MODULE, do_build=False)
    files = plan.files
    verilog = rtlil_to_verilog(files[f"{BOARD_MODULE}.il"])
    router = Router(verilog, BOARD_MODULE, design.device, files[f"{BOARD_MODULE}.lpf"], limit_s)
    return route_seeds(design, "uart_scorer", router, seeds, progress)
