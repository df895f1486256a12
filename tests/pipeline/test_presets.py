"""The first article's deployment advice as a preset."""

from __future__ import annotations

import pytest

from nearkv.pipeline.comparison import balanced_run
from nearkv.pipeline.presets import PRESET_FOLDER, load_preset, preset_names
from nearkv.pipeline.settings import Method
from nearkv_sim.hardware.machine import machine_names, open_machine
from nearkv_sim.hardware.model_shapes import named_model


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_name_machines_and_sources(name):
    preset = load_preset(name)
    assert preset.machine in machine_names()
    assert preset.source


def test_the_first_articles_advice():
    preset = load_preset("hillinfer_36k")
    assert (preset.context_tokens, preset.batches) == (36_000, (4, 5, 6, 7, 8))
    assert (preset.pipeline.method, preset.pipeline.select_fraction) == (Method.NEAR_DATA, 0.2)
    model = named_model("qwen_7b").config
    run = balanced_run(
        open_machine(preset.machine), model, preset.context_tokens, preset.batches[0], preset.pipeline
    )
    assert run.bound_ps <= run.step_ps < run.serial_ps


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("context_tokens: 36_000", "context_tokens: 0", "context_tokens is 0; allowed: from 1"),
        ("[4, 5, 6, 7, 8]", "[4, 4]", "batches is .4, 4.; allowed: ascending from 1"),
        ("method: near_data", "method: magic", "method is 'magic'; allowed: near_data, host_scoring, full"),
        ("machine:", "machin:", "unknown key 'machin'"),
    ],
)
def test_bad_files_are_refused(tmp_path, old, new, message):
    text = (PRESET_FOLDER / "hillinfer_36k.yaml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_preset(str(path))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="preset is 'x'; allowed: hillinfer_36k, or"):
        load_preset("x")
