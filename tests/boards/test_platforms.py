"""Parts and build scripts of boards and cards."""

import importlib.util
import re
from dataclasses import replace

import pytest

from nearkv_hdl.platforms.ulx3s import BAUD, Ulx3s85F, Ulx3sUartScorer
from nearkv_hdl.platforms.xilinx_cards import AlveoU50, ScorerOnCard, SmartSsdKu15P
from nearkv_hdl.spec.designs import KU15P, LFE5U_85F, U50, get_design
from nearkv_sim.synthesis.board import place_board

CARDS = {"alveo_u50": (AlveoU50, U50), "smartssd_ku15p": (SmartSsdKu15P, KU15P)}
# The scorer itself is large: a narrow one on the same part goes through the same script.
SMALL = {
    name: replace(get_design("tiny"), device=device, variant=None) for name, (_, device) in CARDS.items()
}


@pytest.fixture(params=CARDS)
def card(request):
    return request.param


@pytest.fixture
def plan(card):
    return CARDS[card][0]().build(ScorerOnCard(SMALL[card]), name="scorer_on_card", do_build=False)


def test_parts_are_those_of_the_designs():
    for platform, device in (*CARDS.values(), (Ulx3s85F, LFE5U_85F)):
        assert platform().part == device.part


def test_vivado_builds_for_the_part_at_the_designs_clock(card, plan):
    script, constraints = (plan.files[f"scorer_on_card.{end}"] for end in ("tcl", "xdc"))
    assert f"-part {CARDS[card][1].part}" in script
    assert "synth_design -top scorer_on_card" in script
    (clock,) = re.findall(r"^create_clock .*$", constraints, re.MULTILINE)
    assert "-period 20.0 " in clock  # of tiny
    assert "oscillator" in clock
    verilog = plan.files["scorer_on_card.v"]
    assert verilog.count("STARTUPE3") == 1
    assert len(re.findall(r"dont_touch", verilog)) == 1


def test_the_cards_pins(card, plan):
    pins = re.findall(r"set_property LOC (\S+) ", plan.files["scorer_on_card.xdc"])
    assert pins == (["J18"] if card == "alveo_u50" else [])


def test_published_clocks_of_the_u50():
    platform = AlveoU50()
    for number, pins in enumerate((("G17", "G16"), ("BB18", "BC18"))):
        resource = platform.lookup("clk100", number)
        assert (*resource.ios[0].p.names, *resource.ios[0].n.names) == pins
        assert resource.clock.frequency == 100e6
    assert platform.lookup("pcie_refclk", 1).ios[0].p.names == ["AF9"]


def test_ulx3s_is_constrained_to_its_oscillator_and_pins():
    plan = Ulx3s85F().build(Ulx3sUartScorer(get_design("tiny")), name="board", do_build=False)
    constraints = plan.files["board.lpf"]
    assert 'LOCATE COMP "clk25_0__io" SITE "G2"' in constraints
    assert 'LOCATE COMP "uart_0__rx__io" SITE "M1"' in constraints
    assert 'LOCATE COMP "uart_0__tx__io" SITE "L4"' in constraints
    assert 'FREQUENCY PORT "clk25_0__io" 25000000.0 HZ' in constraints
    assert 25_000_000 % BAUD == 0


@pytest.mark.parametrize(
    ("platform", "top", "reason"),
    [
        (
            Ulx3s85F,
            Ulx3sUartScorer(get_design("ecp5_5g_85f")),
            "is for LFE5UM5G-85F-8BG381C; the board has LFE5U",
        ),
        (AlveoU50, ScorerOnCard(get_design("smartssd_ku15p")), "is for xcku15p-.*; the card has xcu50-"),
    ],
)
def test_a_design_of_another_part_is_refused(platform, top, reason):
    with pytest.raises(ValueError, match=reason):
        platform().build(top, do_build=False)


def test_a_board_needs_a_known_name_and_its_pins(monkeypatch):
    with pytest.raises(ValueError, match="board is 'arty'; allowed: ulx3s"):
        place_board("arty", get_design("tiny"), [1])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"extra `boards` installs: pip install -e '.\[boards\]'"):
        place_board("ulx3s", get_design("tiny"), [1])
