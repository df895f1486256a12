"""Energy, temperature and wear of a machine's work."""

from __future__ import annotations

import pytest

from nearkv.machine import PS_PER_S, Timing
from nearkv.machine_record import RecordedMachine
from nearkv_sim.hardware.machine import machine_names, open_machine

MIB = 1 << 20


@pytest.fixture
def hillinfer():
    return open_machine("hillinfer")


def test_every_machine_keeps_a_record():
    for name in machine_names():
        machine = open_machine(name)
        assert isinstance(machine, RecordedMachine)
        record = machine.start_record()
        assert sum(record.energy_j.values()) == 0
        assert set(record.wear.values()) <= {0.0}
        assert record.write_amplification == {}


def test_idle_power_runs_all_the_time(hillinfer):
    record = hillinfer.start_record()
    record.spend(Timing(PS_PER_S, 0, {}))
    assert record.energy_j == {
        name: pytest.approx(unit.count * unit.idle_power_w) for name, unit in hillinfer.units.items()
    }


def energy_of(machine, *work):
    """Energy of work by component, without the idle power of the picosecond that it is counted in."""
    records = [machine.start_record() for _ in range(2)]
    for record, counted in zip(records, (work, ()), strict=True):
        record.spend(Timing(1, 0, {}), counted)
    found, idle = (record.energy_j for record in records)
    return {name: joules - idle.get(name, 0) for name, joules in found.items() if joules != idle.get(name)}


def test_a_transfer_costs_every_stage_its_bytes(hillinfer):
    nbytes = 64 * MIB
    found = energy_of(hillinfer, hillinfer.transfer("host_memory", "gpu_memory", nbytes))
    parts = {**hillinfer.memories, **hillinfer.paths}
    assert found == {
        name: pytest.approx(nbytes * parts[name].pj_per_byte * 1e-12)
        for name in ("host_memory", "gpu_link", "gpu_memory")
        if parts[name].pj_per_byte
    }
    assert "gpu_link" in found


def test_a_kernel_costs_operations_and_the_bytes_of_its_tier(hillinfer):
    flops, nbytes = 10**12, 10**9
    gpu = hillinfer.unit("gpu").config
    assert energy_of(hillinfer, hillinfer.compute("gpu", flops, nbytes)) == {
        "gpu": pytest.approx(flops * gpu.pj_per_flop * 1e-12),
        "gpu_memory": pytest.approx(nbytes * hillinfer.memories["gpu_memory"].pj_per_byte * 1e-12),
    }


def test_a_card_draws_active_power_while_it_scores(hillinfer):
    scan = hillinfer.scan("fpga", 64 * MIB)
    found, card = energy_of(hillinfer, scan), hillinfer.unit("fpga").config
    watts = card.active_power_w - card.idle_power_w
    assert found["fpga"] == pytest.approx(scan.busy_ps["fpga"] / PS_PER_S * watts)
    assert found["card_memory"] > 0


def test_units_in_a_memory_pay_for_cells_not_for_pins():
    machine = open_machine("pam")
    timing = machine.attend("hbm_units", 4096, 64, 8, 128)
    unit = machine.unit("hbm_units").config
    found = energy_of(machine, timing)
    assert timing.flops == 4 * 4096 * 64 * 128
    assert found["hbm_units"] == pytest.approx(timing.flops * unit.pj_per_flop * 1e-12)
    assert found["hbm_pim"] == pytest.approx(timing.nbytes * unit.pj_per_byte * 1e-12)


def test_work_heats_a_card_and_wears_a_drive(hillinfer):
    record = hillinfer.start_record()
    cool = record.celsius["fpga"]
    scan = hillinfer.scan("fpga", 64 * MIB)
    for _ in range(100):
        record.spend(scan, [scan])
    assert record.celsius["fpga"] > cool
    record.write("nand", 10**12, 16384, random=False)
    whole = record.wear["nand"]
    assert 0 < whole < 1
    assert record.write_amplification == {"nand": 1.0}
    record.write("nand", 10**12, 512, random=True)
    assert record.wear["nand"] > 10 * whole
    assert record.write_amplification["nand"] > 1
