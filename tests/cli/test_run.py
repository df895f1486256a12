"""`nearkv run`: results, comparison, interrupts, and every refusal in one line with nothing written."""

from __future__ import annotations

import json
import signal
import warnings
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import pytest

from nearkv import cli
from nearkv.command import Command
from nearkv.commands import run
from nearkv.experiments.config import ExperimentConfig
from nearkv.experiments.group import SelectionGroup
from nearkv.experiments.runner import ScorerDevice
from nearkv.experiments.summary import _COLUMNS
from nearkv_sim.hardware.pcie_config import PRESETS

POLICY = '''
from nearkv.policy import Policy

class Newest(Policy):
    """Keeps the newest."""

    def place(self, seen):
        return seen.fill(range_of(seen))

def range_of(seen):
    import numpy as np
    return np.arange(seen.sealed_tokens)
'''


@pytest.fixture(autouse=True)
def _in_folder(folder: Path) -> None:
    """Every test here works in the folder with run.yaml and its trace."""


def files() -> set[str]:
    return {str(path) for path in Path().rglob("*")}


def test_the_table_goes_to_stdout_and_nothing_else_is_written(nearkv):
    before = files()
    outcome = nearkv("run", "run.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert (
        lines[0]
        == "hill, score_all, int8: 4 steps of 2 streams on smartssd_ku15p over tlm; per decoded token"
    )
    assert lines[-1].startswith("all ")
    assert files() == before


def test_json_overrides_seed_and_transport(nearkv):
    outcome = nearkv(
        "run",
        "run.yaml",
        "policy.name=recency",
        "--format",
        "json",
        "--seed",
        3,
        "--transport",
        "tlm",
        "steps=2",
    )
    summary = json.loads(outcome.out)
    assert outcome.code == 0
    config = summary["config"]
    assert (config["policy"]["name"], config["seed"], config["steps"]) == ("recency", 3, 2)
    assert [stream["stream"] for stream in summary["streams"]] == ["L0.H0", "L1.H0"]


def test_help_explains_every_key_and_column(nearkv):
    text = nearkv("run", "--help").out
    words = text.split()
    assert {field.name for field in fields(ExperimentConfig)} <= set(words)
    assert all(name in text for name in _COLUMNS if name not in ("stream", "worst head"))
    assert all(name in text for name in PRESETS)


def test_without_a_command_there_is_help(nearkv):
    outcome = nearkv()
    assert (outcome.code, outcome.out) == (2, "")
    assert "usage: nearkv" in outcome.err
    assert nearkv("--version").out == f"nearkv {version('nearkv')}\n"


def test_progress_is_for_terminals(nearkv, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    lines = nearkv("run", "run.yaml").err.split("\n")
    assert lines[0].startswith("tlm: opening")
    assert lines[1].startswith("tlm: writing the prompt")
    assert lines[2].endswith("\rtlm: step 4/4")
    assert nearkv("run", "run.yaml", "--no-progress").err == ""


def test_equal_commands_write_equal_folders(nearkv):
    for name in ("one", "two"):
        assert nearkv("run", "run.yaml", "--output", name, "--no-progress").code == 0
    one, two = ({p.name: p.read_bytes() for p in Path(name).iterdir()} for name in ("one", "two"))
    assert one == two
    assert {"summary.json", "steps.csv", "report.html", "config.resolved.yaml"} < one.keys()


def test_a_policy_of_the_user(nearkv):
    Path("my_policy.py").write_text(POLICY)
    mine = nearkv("run", "run.yaml", "policy.name=my_policy:Newest", "--format", "json")
    recency = nearkv("run", "run.yaml", "policy.name=recency", "--format", "json")
    assert mine.code == 0
    assert json.loads(mine.out)["streams"] == json.loads(recency.out)["streams"]


def test_comparing_two_transports_that_agree(nearkv, other_transport):
    other_transport(ScorerDevice)
    outcome = nearkv("run", "run.yaml", "--compare", "tlm,other", "--output", "out")
    assert outcome.code == 0
    assert "tlm and other: " in outcome.out
    assert "fields identical over 4 steps" in outcome.out
    comparison = json.loads(Path("out/summary.json").read_text())["comparison"]
    assert comparison["identical"]
    assert comparison["cycles"][0] == comparison["cycles"][1] > 0


def test_a_single_wrong_bit_of_one_score_is_found(nearkv, other_transport, lying_device):
    other_transport(lying_device)
    outcome = nearkv("run", "run.yaml", "--compare", "tlm,other", "--output", "out")
    assert outcome.code == 1
    verdict, written = outcome.out.splitlines()[-2:]
    assert verdict.startswith("tlm and other differ: ")
    assert "at step 1, stream L1.H0" in verdict
    assert written.startswith("out: report.html, summary.json, steps.csv, ")
    assert not json.loads(Path("out/summary.json").read_text())["comparison"]["identical"]
    assert "differ" in Path("out/report.html").read_text()


def interrupt_at(monkeypatch, calls: int) -> None:
    original, seen = SelectionGroup.step, []

    def step(self, number):
        seen.append(number)
        if len(seen) == calls:
            raise KeyboardInterrupt
        return original(self, number)

    monkeypatch.setattr(SelectionGroup, "step", step)


def test_an_interrupt_keeps_the_finished_steps(nearkv, monkeypatch):
    whole = nearkv("run", "run.yaml", "--output", "whole")
    assert whole.code == 0
    interrupt_at(monkeypatch, 6)  # in step 2, after its first stream
    outcome = nearkv("run", "run.yaml", "--output", "part")
    assert outcome.code == 130
    assert outcome.err == "nearkv run: interrupted after 2 steps\n"
    assert "incomplete: 2 of 4 steps" in outcome.out
    assert not json.loads(Path("part/summary.json").read_text())["complete"]
    part, complete = (Path(name, "steps.csv").read_text().splitlines() for name in ("part", "whole"))
    assert part == complete[:5]


def test_an_interrupt_while_results_are_written_does_not_lose_them(nearkv, monkeypatch):
    original = run.write_output

    def write_output(*arguments):
        signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(run, "write_output", write_output)
    before = signal.getsignal(signal.SIGINT)
    assert nearkv("run", "run.yaml", "--output", "whole").code == 0
    assert json.loads(Path("whole/summary.json").read_text())["complete"]
    assert signal.getsignal(signal.SIGINT) is before


def test_what_cannot_be_written_is_shown(nearkv, monkeypatch):
    def write_output(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(run, "write_output", write_output)
    outcome = nearkv("run", "run.yaml", "--output", "whole")
    assert (outcome.code, outcome.err) == (2, "nearkv run: error: the disk is full\n")
    assert outcome.out.splitlines()[-1].startswith("all ")


def test_an_interrupt_before_the_first_step_leaves_nothing(nearkv, monkeypatch):
    interrupt_at(monkeypatch, 1)
    before = files()
    outcome = nearkv("run", "run.yaml", "--output", "out")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "nearkv run: interrupted\n")
    assert files() == before


def test_an_interrupted_comparison_compares_what_both_finished(nearkv, other_transport, monkeypatch):
    other_transport(ScorerDevice)
    interrupt_at(monkeypatch, 8 + 4)  # step 1 of the second run
    outcome = nearkv("run", "run.yaml", "--compare", "tlm,other")
    assert outcome.code == 130
    assert "fields identical over 1 steps" in outcome.out


@pytest.fixture
def bad_files() -> None:
    content = Path("small.safetensors").read_bytes()
    Path("cut.safetensors").write_bytes(content[: len(content) // 2])
    Path("foreign.safetensors").write_bytes(b"not a trace at all")
    Path("typo.yaml").write_text("trace: small.safetensors\npolicy: {name: hill}\nhot_fracton: 0.2\n")
    Path("broken.yaml").write_text("trace: [\n")
    Path("binary.yaml").write_bytes(b"trace: \xff\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.yaml"], "No such file or directory: 'no.yaml'"),
        (["."], "Is a directory: '.'"),
        (["typo.yaml"], "typo.yaml: unknown key 'hot_fracton'; allowed: trace, policy,"),
        (["broken.yaml"], "broken.yaml: not YAML"),
        (["binary.yaml"], "binary.yaml: not UTF-8 text"),
        (["run.yaml", "trace=cut.safetensors"], "cut.safetensors: truncated, or not a safetensors file"),
        (
            ["run.yaml", "trace=foreign.safetensors"],
            "foreign.safetensors: truncated, or not a safetensors file",
        ),
        (
            ["run.yaml", "trace=narrow.safetensors"],
            "head_dim is 32; design smartssd_ku15p allows: 64, 128, 256",
        ),
        (["run.yaml", "trace=missing"], "No such file or directory: 'missing'"),
        (["run.yaml", "policy.name=hil"], "policy is 'hil'; allowed: arc, belady, ema_access"),
        (["run.yaml", "policy.name=nowhere:Policy"], "cannot import 'nowhere'"),
        (["run.yaml", "policy.options.x=1"], "policy hill has no option 'x'; allowed: decay_shift, surge"),
        (["run.yaml", "design=big"], "design is 'big'; allowed: tiny,"),
        (["run.yaml", "--transport", "tcp"], "transport is 'tcp'; allowed: pcie, pyxrt, rtl, tlm"),
        (["run.yaml", "--compare", "tlm,tcp"], "transport is 'tcp'; allowed: pcie, pyxrt, rtl, tlm"),
        (["run.yaml", "--compare", "tlm"], "--compare is 'tlm'; allowed: two different transports"),
        (["run.yaml", "--compare", "tlm,tlm"], "--compare is 'tlm,tlm'; allowed: two different transports"),
        (["run.yaml", "link=null"], "link is null; transport tlm needs one, such as smartssd"),
        (["run.yaml", "link=isa"], "link is 'isa'; allowed: smartssd"),
        (
            ["run.yaml", "transport=tlm", "--compare", "tlm,rtl"],
            "override is 'transport=tlm' with --compare tlm,rtl; allowed: one of them",
        ),
        (
            ["run.yaml", "--transport", "tlm", "transport=rtl"],
            "override 'transport=tlm' replaces 'transport=rtl'; allowed: one of them",
        ),
        (["run.yaml", "--seed", "1", "seed=2"], "override 'seed=1' replaces 'seed=2'; allowed: one of them"),
        (["run.yaml", "steps=5"], "steps is 5; allowed: 1 to 4"),
        (["run.yaml", "steps=many"], "steps is 'many'; allowed: a whole number"),
        (["run.yaml", "streams=[L5.H0]"], "stream is 'L5.H0'; allowed: L0.H0, L1.H0"),
        (["run.yaml", "steps"], "override is 'steps'; allowed: key=value"),
        (["run.yaml", "--seed", "-1"], "seed is -1; allowed: 0 or more"),
    ],
)
@pytest.mark.parametrize("output", [[], ["--output", "out"]])
@pytest.mark.usefixtures("bad_files")
def test_a_refusal_is_one_line_and_writes_nothing(words, message, output, nearkv):
    before = files()
    outcome = nearkv("run", *words, *output)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("nearkv run: error: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err
    assert files() == before


def test_an_existing_result_folder_is_refused_before_the_work(nearkv, monkeypatch):
    Path("there").mkdir()
    interrupt_at(monkeypatch, 1)  # would show if the run were started
    outcome = nearkv("run", "run.yaml", "--output", "there")
    assert outcome.code == 2
    assert outcome.err == (
        "nearkv run: error: output there exists; allowed: a new folder, results are never overwritten\n"
    )
    assert list(Path("there").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--formt", "json"], "nearkv: error: unrecognized arguments: --formt"),
        (["--format", "xml"], "nearkv run: error: argument --format: invalid choice: 'xml' (choose from "),
        (["--seed", "x"], "nearkv run: error: argument --seed: invalid int value: 'x'"),
        (["--compare", "tlm,rtl", "--transport", "tlm"], "argument --transport: not allowed with argument"),
    ],
)
def test_wrong_options_are_refused_in_one_line(words, message, nearkv):
    outcome = nearkv("run", "run.yaml", *words)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err


def test_an_interrupt_while_the_commands_load_is_one_line(monkeypatch, capsys):
    def load_commands(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_commands", load_commands)
    assert cli.main(["run", "run.yaml"]) == 130
    assert capsys.readouterr().err == "nearkv: interrupted\n"


class HalfBuilt:
    """Complains when it is thrown away, as a hardware design that was never finished does."""

    def __del__(self):
        warnings.warn_explicit("created but never used", UserWarning, __file__, 1)


@pytest.mark.parametrize(
    ("error", "code", "line"), [(KeyboardInterrupt(), 130, "interrupted"), (ValueError("no"), 2, "error: no")]
)
def test_what_is_thrown_away_unfinished_adds_no_line(monkeypatch, capsys, error, code, line):
    def run(_args):
        _design = HalfBuilt()
        raise error

    monkeypatch.setattr(cli, "load_commands", lambda *_: {"rtl": Command("", lambda _: None, run)})
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert cli.main(["rtl"]) == code
        error.__traceback__ = None  # which held the design
    assert shown == []
    assert capsys.readouterr().err == f"nearkv rtl: {line}\n"


def test_more_heads_than_the_query_group_take_several_jobs(nearkv):
    cycles = [
        json.loads(nearkv("run", "run.yaml", f"design={design}", "--format", "json").out)["total"][
            "device_cycles"
        ]
        for design in ("ulx3s_85f", "ecp5_5g_85f")  # one head at a time, and both
    ]
    assert cycles[0] == pytest.approx(2 * cycles[1], rel=0.05)


def test_compiled_rtl_and_the_fast_model_agree(nearkv):
    outcome = nearkv(
        "run",
        "run.yaml",
        "design=tiny",
        "uniform_score=true",
        "format=int4",
        "--compare",
        "tlm,rtl",
        "steps=2",
    )
    assert outcome.code == 0
    assert "tlm and rtl: " in outcome.out
    assert "fields identical over 2 steps" in outcome.out
