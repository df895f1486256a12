"""Result folders, summaries and comparisons."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from nearkv.experiments.compare import compare
from nearkv.experiments.config import ExperimentConfig, PolicyConfig, load_config
from nearkv.experiments.output import summary_json, write_output
from nearkv.experiments.runner import run_experiment
from nearkv.experiments.summary import columns, steps_csv, summarise, table

FILES = {
    "config.resolved.yaml",
    "occupancy.png",
    "quality.png",
    "recall.png",
    "report.html",
    "steps.csv",
    "summary.json",
    "time.png",
    "traffic.png",
}


@pytest.fixture
def result_of(trace_of, fake_device):
    def make(**changes):
        config = ExperimentConfig(trace=Path("data/a.safetensors"), policy=PolicyConfig("hill"), **changes)
        return run_experiment(config, trace_of(), fake_device())

    return make


def altered(result, index: int, **changes):
    records = list(result.records)
    records[index] = replace(records[index], **changes)
    return replace(result, records=tuple(records))


def test_the_summary_is_the_mean_of_quality_and_the_sum_of_traffic(result_of):
    result = result_of()
    summary = summarise(result)
    assert json.loads(summary_json(result, None)) == summary
    first, total = summary["streams"][0], summary["total"]
    records = result.of_stream("L0.H0")
    assert first["hit_rate"] == pytest.approx(np.mean([r.hit_rate for r in records]))
    assert first["device_cycles"] == sum(r.device_cycles for r in records)
    assert first["recall_worst_head"] == min(first["recall_per_head"])
    assert total["time_ps"] == sum(r.time_ps for r in result.records)
    assert summary["per_token"]["time_ps"] == total["time_ps"] / 12
    assert summary["config"]["trace"] == "a.safetensors"  # no path of this machine


def test_the_csv_holds_every_step(result_of):
    result = result_of()
    rows = list(csv.DictReader(io.StringIO(steps_csv(result))))
    assert len(rows) == 24
    assert [rows[3][key] for key in ("step", "stream", "position")] == ["1", "L1.H0", "301"]
    assert float(rows[3]["recall_head_2"]) == result.records[3].recall[2]
    assert int(rows[3]["time_ps"]) == result.records[3].time_ps


def test_the_table_names_every_stream(result_of):
    lines = table(result_of()).splitlines()
    assert (
        lines[0]
        == "hill, score_all, int8: 12 steps of 2 streams on smartssd_ku15p over tlm; per decoded token"
    )
    assert [line.split()[0] for line in lines[1:]] == ["stream", "L0.H0", "L1.H0", "all"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_columns_align():
    assert columns([("a", "bb"), ("ccc", "d")]) == ["a    bb", "ccc   d"]


def test_equal_runs_write_equal_bytes(result_of, tmp_path):
    for name in ("one", "two"):
        write_output(tmp_path / "results" / name, result_of(), None)
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / "results" / n).iterdir()} for n in ("one", "two")
    )
    assert one.keys() == FILES
    assert one == two
    assert sorted(p.name for p in (tmp_path / "results").iterdir()) == ["one", "two"]


def test_the_resolved_configuration_repeats_the_run(result_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = result_of(sinks=7)
    write_output(Path("out/run"), result, None)
    content = yaml.safe_load(Path("out/run/config.resolved.yaml").read_text())
    assert content["trace"] == "../../data/a.safetensors"
    assert load_config(Path("out/run/config.resolved.yaml")) == result.config


def test_the_resolved_configuration_finds_its_trace_from_behind_a_link(result_of, tmp_path, monkeypatch):
    """`link/../data` is not `data` to the operating system."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "far/away"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "a.safetensors").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    write_output(Path("link/run"), result_of(), None)
    for route in ("link/run", "far/away/run"):
        trace = load_config(Path(route, "config.resolved.yaml")).trace
        assert trace.samefile("data/a.safetensors")


def test_the_report_needs_no_other_file(result_of, tmp_path):
    write_output(tmp_path / "run", result_of(), None)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert "http" not in page
    for needed in ("L1.H0", "query head 2", "seed: 0", "the host takes no time"):
        assert needed in page
    assert "Incomplete" not in page


def test_an_incomplete_run_says_so_everywhere(result_of, tmp_path):
    result = replace(result_of(), planned_steps=20)
    write_output(tmp_path / "run", result, None)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["complete"], summary["steps"], summary["planned_steps"]) == (False, 12, 20)
    assert "Interrupted after 12 of\n20 steps" in (tmp_path / "run" / "report.html").read_text()
    assert "incomplete: 12 of 20 steps" in table(result)


def test_an_existing_folder_is_refused(result_of, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match=r"run exists; allowed: a new folder"):
        write_output(tmp_path / "run", result_of(), None)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_failure_while_writing_leaves_nothing(result_of, tmp_path, monkeypatch):
    write = Path.write_bytes

    def fail(self, content):
        if self.name == "report.html":
            raise OSError("No space left on device")
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        write_output(tmp_path / "a" / "run", result_of(), None)
    assert list(tmp_path.iterdir()) == []


def test_runs_that_differ_in_time_alone_are_identical(result_of):
    first = result_of()
    second = altered(replace(first, config=replace(first.config, transport="rtl")), 5, score_time_ps=1)
    found = compare(first, second)
    assert found.identical
    assert {"device_cycles", "score_crc32", "selection_crc32", "output_crc32", "recall_head_0"} <= set(
        found.fields
    )
    assert not [name for name in found.fields if name.endswith("_ps")]
    assert found.lines()[0].startswith("tlm and rtl: ")


@pytest.mark.parametrize("field", ["score_crc32", "device_cycles", "mass_kept"])
def test_the_first_difference_is_named(field, result_of):
    first = result_of()
    second = replace(first, config=replace(first.config, transport="rtl"))
    value = getattr(first.records[5], field)
    second = altered(altered(second, 5, **{field: value + 1}), 9, hit_rate=0.25)
    found = compare(first, second)
    assert not found.identical
    assert found.difference == (f"{field} at step 2, stream L1.H0: {value} in tlm, {value + 1} in rtl")


def test_a_difference_in_the_last_record_is_found(result_of):
    result = result_of()
    last = result.records[-1]
    other = altered(result, -1, output_crc32=last.output_crc32 ^ 1)
    difference = compare(result, other).difference
    assert difference is not None
    assert f"output_crc32 at step {last.step}, stream {last.stream}" in difference
