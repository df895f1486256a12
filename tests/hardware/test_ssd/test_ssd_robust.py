"""Drives at their limits: power cuts one after the other, over-writing without spare, odd arguments."""

import random
from dataclasses import replace

import pytest

from nearkv_sim.hardware.ssd.config import COLLECTOR_SUPERBLOCKS
from nearkv_sim.hardware.ssd.direct_io import DirectIo, HostIoConfig
from nearkv_sim.hardware.ssd.ftl import Ftl
from nearkv_sim.hardware.ssd.nvme import QueuePair
from nearkv_sim.hardware.ssd.workloads import random_read, sequential

UNIT = 4096
US = 10**6
SUPERBLOCK = 4 * 16 * 8192
SHORT = {"pages_per_block": 4, "logical_bytes": 11 * SUPERBLOCK // 4}  # eight program units a superblock
LEAST_GC = {"gc_low_superblocks": COLLECTOR_SUPERBLOCKS + 1, "gc_high_superblocks": COLLECTOR_SUPERBLOCKS + 2}
DRIVES = {
    "plain": {},
    "protected": {"power_loss_protection": True},
    "fullest": {"logical_bytes": 12 * SUPERBLOCK, **LEAST_GC},
    "fullest protected": {"logical_bytes": 12 * SUPERBLOCK, **LEAST_GC, "power_loss_protection": True},
    "buffer of four superblocks": {"write_buffer_bytes": 4 * SUPERBLOCK, "power_loss_protection": True},
    "short blocks": {**SHORT, **LEAST_GC},
}


class Model:
    """What every unit may hold after a power cut, as tags; None: nothing."""

    def __init__(self, units):
        self.allowed = [{0} for _ in range(units)]
        self.acknowledged = [0] * units

    def may(self, units, tag):
        for unit in units:
            self.allowed[unit].add(tag)

    def ended(self, units, tag, *, durable):
        for unit in units:
            self.acknowledged[unit] = tag
            if durable:
                self.allowed[unit] = {tag}

    def settle(self, survivor):
        """Compare every unit, then take what has survived as the new start."""
        for unit, allowed in enumerate(self.allowed):
            stamp = survivor.stamp(unit)
            tag = stamp.tag if stamp else None
            assert tag in allowed, f"unit {unit} holds {tag}; allowed: {allowed}"
            self.ended([unit], tag, durable=True)


def client(ssd, model, rng, units, tags):
    """Write, overwrite, flush and discard within `units`; `tags` numbers the writes."""
    protected = ssd.config.power_loss_protection
    while True:
        first = rng.choice(units)
        chosen = range(first, min(units.stop, first + rng.choice((1, 1, 3, 16, 60))))
        start_bytes, nbytes = first * UNIT, len(chosen) * UNIT
        action = rng.random()
        if action < 0.8:
            tag, fua, cut_bytes = next(tags), rng.random() < 0.2, 512 * (rng.random() < 0.1)
            model.may(chosen, tag)
            yield ssd.write(start_bytes + cut_bytes, nbytes - cut_bytes, tag=tag, fua=fua)
            model.ended(chosen, tag, durable=fua or protected)
        elif action < 0.9:
            before = {unit: model.acknowledged[unit] for unit in units}
            yield ssd.flush()
            for unit, tag in before.items():
                model.ended([unit], tag, durable=True)
        else:
            model.may(chosen, None)
            yield ssd.discard(start_bytes, nbytes)
            model.ended(chosen, None, durable=True)


@pytest.mark.parametrize("name", DRIVES)
@pytest.mark.parametrize("seed", range(4))
def test_power_cut_after_power_cut(drive, small, name, seed):
    config = replace(small, **DRIVES[name])
    units = config.logical_bytes // UNIT
    model, rng, tags = Model(units), random.Random(seed), iter(range(1, 10**9))
    survivor = Ftl(config, config.logical_bytes)
    for _ in range(12):
        env, ssd, _ = drive(config, ftl=survivor)
        for part in range(4):
            of_client = range(part * units // 4, (part + 1) * units // 4)
            env.process(client(ssd, model, rng, of_client, tags))
        env.run(rng.randrange(1, rng.choice((100, 3_000, 60_000))) * US)
        survivor = ssd.power_cut()
        model.settle(survivor)
        places = [survivor.locate(unit) for unit in range(units)]
        mapped = [place for place in places if place is not None]
        assert len(set(mapped)) == len(mapped) == sum(survivor.valid)
    assert next(tags) > 50


@pytest.mark.parametrize("change", [{}, *DRIVES.values()])
def test_overwriting_without_spare_ends_and_keeps_everything(drive, small, finish, change):
    config = replace(small, **change)
    env, ssd, _ = drive(config, filled=True)
    units, rng, newest = config.logical_bytes // UNIT, random.Random(3), {}
    for tag in range(1, 2 * units // 16):
        chosen = rng.sample(range(units), 16)
        finish(env, *(ssd.write(unit * UNIT, UNIT, tag=tag) for unit in chosen))
        newest.update(dict.fromkeys(chosen, tag))
    finish(env, ssd.flush())
    env.run()  # collection comes to its end
    survivor = ssd.power_cut()
    assert all(survivor.stamp(unit).tag == newest.get(unit, 0) for unit in range(units))


def test_a_drive_of_which_everything_is_discarded_is_empty(drive, small, finish):
    env, ssd, _ = drive(filled=True)
    finish(env, ssd.discard(0, small.logical_bytes))
    assert sum(ssd.ftl.valid) == 0
    for start_bytes in range(0, small.logical_bytes, SUPERBLOCK):
        finish(env, ssd.write(start_bytes, SUPERBLOCK, tag=1))
    env.run()
    assert ssd.ftl.write_amplification == 1.0
    assert sum(ssd.ftl.valid) == small.logical_bytes // UNIT


def test_what_capacitors_saved_is_buffered_again_and_not_counted_twice(drive, small, finish):
    config = replace(small, power_loss_protection=True)
    env, ssd, _ = drive(config)
    finish(env, ssd.write(0, 3 * UNIT, tag=4))
    finish(env, ssd.write(0, UNIT, tag=5))
    for _ in range(3):  # less than a program unit: nothing reaches NAND between the cuts
        env, ssd, _ = drive(config, ftl=ssd.power_cut())
        assert 0 in ssd.writer.buffer
    finish(env, ssd.discard(2 * UNIT, UNIT))
    finish(env, ssd.write(8 * UNIT, 2 * UNIT, tag=6))
    env.run()
    assert (ssd.ftl.host_units, ssd.ftl.programmed_units) == (6, 4)
    survivor = ssd.power_cut()
    assert [survivor.stamp(unit) and survivor.stamp(unit).tag for unit in (0, 1, 2, 8)] == [5, 4, None, 6]


def test_a_version_given_up_while_it_is_programmed_is_not_saved(drive, small, finish):
    env, ssd, _ = drive(replace(small, power_loss_protection=True))
    finish(env, ssd.write(0, 4 * UNIT, tag=1))  # its program has begun
    finish(env, ssd.discard(0, UNIT))
    survivor = ssd.power_cut()
    assert [survivor.stamp(unit) and survivor.stamp(unit).tag for unit in (0, 1)] == [None, 1]


def test_commands_under_way_at_a_power_cut_never_end(drive):
    env, ssd, _ = drive(filled=True)
    commands = [ssd.read(0, UNIT), ssd.write(0, UNIT), ssd.discard(0, UNIT), ssd.flush()]
    ssd.power_cut()
    env.run()
    assert not any(command.triggered for command in commands)


def test_no_superblock_left(small):
    ftl = Ftl(small)
    for _ in range(16 * 32):
        ftl.allocate("collector")
    with pytest.raises(RuntimeError, match="no erased superblock is left"):
        ftl.allocate("collector")


def test_a_victim_gains_at_least_a_program_unit(small):
    ftl = Ftl(small, 2 * SUPERBLOCK)
    for unit in range(3):
        ftl.discard(unit, 1 + unit)
    assert ftl.victim() is None
    ftl.discard(3, 4)
    assert ftl.victim() == 0


def test_state_of_another_drive_is_refused(drive, small):
    with pytest.raises(ValueError, match="ftl is of another drive"):
        drive(replace(small, channels=4), ftl=Ftl(small))


def test_a_full_drive_must_gain_by_collection(small):
    change = {"blocks_per_plane": 128, "logical_bytes": 122 * SUPERBLOCK}
    with pytest.raises(ValueError, match="allowed: up to 63488000, so that one of 125 superblocks"):
        replace(small, **change)


@pytest.mark.parametrize(
    ("start_bytes", "nbytes", "message"),
    [(0, 0, "nbytes is 0"), (0, -4096, "nbytes is -4096"), (-1, 1, "start_bytes is -1"), (0, 1.5, "is 1.5")],
)
def test_direct_io_refuses_impossible_ranges(drive, small, start_bytes, nbytes, message):
    env, ssd, _ = drive()
    io = DirectIo(env, ssd, QueuePair(env, small.link_config()), HostIoConfig(call_ps=0, page_ps=0))
    for call in (io.pread, io.pwrite):
        with pytest.raises(ValueError, match=message):
            call(start_bytes, nbytes)


@pytest.mark.parametrize("nbytes", [0, -1, 4096.0, 2**21])
def test_workloads_refuse_impossible_sizes(small, nbytes):
    with pytest.raises(ValueError, match=f"nbytes is {nbytes}; allowed"):
        random_read(small, 1, 1, nbytes=nbytes)
    with pytest.raises(ValueError, match=f"nbytes is {nbytes}; allowed"):
        sequential(small, 1, 1, nbytes=nbytes, write=True)
