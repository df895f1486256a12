"""Presets: the article's keys, what they change, and bad files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv.pam.presets import PRESET_FOLDER, load_preset, preset_names
from nearkv.pam.scheduler import PamScheduler, Rule, Scheduling
from nearkv_sim.hardware.machine import ModelMachine, machine_names, open_machine

TOKEN_BYTES = 1 << 20


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_open_their_machine_and_make_a_scheduler(name):
    preset = load_preset(name)
    assert preset.source
    assert preset.machine in machine_names()
    machine = ModelMachine(name, preset.resized(open_machine(preset.machine).description))
    room = preset.room_tokens(machine.description, TOKEN_BYTES, 4096)
    scheduler = PamScheduler(4096, room, preset.scheduling, preset.rule)
    assert scheduler.scheduling == preset.scheduling


def test_the_articles_keys_as_it_writes_them():
    chat = load_preset("chat_heavy")
    assert chat.scheduling == Scheduling(migration_interval=50, hot_threshold=5.0, batch_size=16)
    assert chat.rule is Rule.COUNTS
    assert load_preset("paper").scheduling.migration_interval == 1


def test_a_chat_heavy_load_keeps_60_percent_in_hbm():
    machine = open_machine("pam_deployment").description
    chat, plain = load_preset("chat_heavy"), load_preset("long_context")
    assert chat.room_tokens(machine, TOKEN_BYTES, 1000) == (600, 1000, 1000)
    assert plain.room_tokens(machine, TOKEN_BYTES, 1000) == (1000, 1000, 1000)
    # 16 GiB hold 16,384 tokens of a MiB.
    assert chat.room_tokens(machine, TOKEN_BYTES, 100_000)[0] == 16_384


@pytest.mark.parametrize("devices", [4, 5, 6])
def test_a_node_with_more_ssds_holds_more_and_is_faster(devices):
    machine = open_machine("pam_deployment")
    preset = replace(load_preset("long_context"), ssd_devices=devices)
    resized = ModelMachine("mine", preset.resized(machine.description))
    assert resized.description.tier("ssd_pim").capacity_bytes == 2_000_398_934_016 * devices
    one = ModelMachine("one", replace(preset, ssd_devices=1).resized(machine.description))
    ask = ("ssd_units", 65_536, 64, 8, 128)
    assert resized.attend(*ask).time_ps * devices == pytest.approx(one.attend(*ask).time_ps, rel=0.1)
    link = next(link for link in resized.description.links if link.name == "ssd_link")
    assert link.count == devices


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("migration_interval", "migration_intervall", "scheduling: unknown key 'migration_intervall'"),
        ("batch_size: 16", "batch_size: many", "batch_size is 'many'; allowed: a whole number"),
        ("hot_threshold: 5.0", "hot_threshold: 0.1", "hot_threshold is 0.1; allowed: from 1"),
        ("hbm_share: 0.6", "hbm_share: 1.6", "hbm_share is 1.6; allowed: above 0, to 1"),
        ("hbm_share: 0.6", "ssd_devices: 0", "ssd_devices is 0; allowed: from 1, or null"),
        ("rule: counts", "rule: luck", "rule is 'luck'; allowed: scores, counts"),
        ("  batch_size: 16", "  batch_size: 16\n  batch_size: 16", "given twice"),
    ],
)
def test_bad_files_are_refused(tmp_path, old, new, message):
    text = (PRESET_FOLDER / "chat_heavy.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_preset(str(path))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: load_preset("x"), "preset is 'x'; allowed: chat_heavy, long_context, paper"),
        (
            lambda: load_preset("paper").room_tokens(open_machine("hillinfer").description, 1, 1),
            "machine has 0 PIM tiers; allowed: HBM, DDR and SSD",
        ),
        (
            lambda: load_preset("paper").room_tokens(open_machine("pam").description, 0, 1),
            "token_bytes is 0 and tokens 1",
        ),
    ],
)
def test_bad_arguments_are_refused(ask, message):
    with pytest.raises(ValueError, match=message):
        ask()
