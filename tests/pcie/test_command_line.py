"""`nearkv run` on the transport pcie: compared with tlm, and both their packets logged."""

import runpy
from collections import Counter
from pathlib import Path

from nearkv import cli
from nearkv.trace.format import write_trace
from nearkv_sim.pcie.tlp_log import CARD_PORT, read_log

RUNTIME = runpy.run_path(str(Path(__file__).parents[1] / "runtime" / "conftest.py"))
CONFIG = "trace: small.safetensors\npolicy: {name: hill}\nhot_fraction: 0.4\ndesign: tiny\nsteps: 1\n"


def test_both_transports_give_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_trace(
        "small.safetensors", RUNTIME["make_trace"](first_query_position=260, steps=1, streams=1, group=2)
    )
    Path("run.yaml").write_text(CONFIG, encoding="utf-8")
    code = cli.main(["run", "run.yaml", "--compare", "tlm,pcie", "--tlp-log", "tlps"])
    output = capsys.readouterr()
    assert code == 0, output.err
    assert "tlm and pcie" in output.out
    assert sorted(path.name for path in Path("tlps").iterdir()) == ["pcie.jsonl", "tlm.jsonl"]
    tlm, pcie = (
        Counter(
            record.type for record in read_log(Path("tlps") / f"{name}.jsonl") if record.port == CARD_PORT
        )
        for name in ("tlm", "pcie")
    )
    assert tlm == pcie
    assert {"MRd", "MWr", "CplD"} <= set(tlm)
