"""`nearkv waves`."""

import pytest

from nearkv.cli import main
from nearkv_sim.cosim.simulators import available_simulators


@pytest.mark.parametrize("simulator", available_simulators())
def test_leaves_a_waveform_file(tmp_path, capsys, simulator):
    output = tmp_path / "new" / "waves"
    assert main(["waves", "--output", str(output), "--simulator", simulator]) == 0
    assert capsys.readouterr().out.split() == [str(output / "dump.vcd")]
    assert "i_keys_payload" in (output / "dump.vcd").read_text()
    assert [path.name for path in output.parent.iterdir()] == ["waves"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--design", "huge"], "design is 'huge'; allowed: tiny"),
        (["--simulator", "modelsim"], "simulator 'modelsim' is unknown; allowed here: "),
    ],
)
def test_bad_arguments_write_nothing(tmp_path, capsys, arguments, message):
    assert main(["waves", "--output", str(tmp_path / "waves"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_existing_folder_is_refused(tmp_path, capsys):
    assert main(["waves", "--output", str(tmp_path)]) == 2
    assert "exists; allowed: a new folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
