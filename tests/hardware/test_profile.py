"""Profiles: values, sources, and what is refused."""

from dataclasses import dataclass

import pytest

from nearkv_sim.hardware.profile import named_profile, read_profile


@dataclass(frozen=True)
class Lamp:
    power_mw: int
    colours: tuple[str, ...] = ()
    efficiency: float = 1
    dimmable: bool = False

    def __post_init__(self) -> None:
        if self.power_mw < 0:
            raise ValueError(f"power_mw is {self.power_mw}; allowed: from 0")


def write(folder, parameters, kind="lamp"):
    path = folder / "bulb.yaml"
    path.write_text(f"kind: {kind}\ndescription: a bulb\nparameters:\n  {parameters}\n")
    return path


def test_values_and_sources(tmp_path):
    text = '{power_mw: {value: 7, source: label}, colours: {value: [red, blue], source: "seen"},'
    text += " efficiency: {value: 1, source: guess}}"
    path = tmp_path / "bulb.yaml"
    path.write_text(f"kind: lamp\ndescription: a bulb\nparameters: {text}\n")
    profile = read_profile(path, "lamp", Lamp)
    assert profile.config == Lamp(7, ("red", "blue"), 1, False)
    assert profile.sources == {"power_mw": "label", "colours": "seen", "efficiency": "guess"}
    assert (profile.name, profile.description) == ("bulb", "a bulb")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("power_mw: {value: 7}", "power_mw is"),
        ("power_mw: {value: 7, source: ' '}", "power_mw is"),
        ("power_mw: 7", "power_mw is 7"),
        ("colours: {value: [], source: x}", "power_mw is missing"),
        ("weight: {value: 7, source: x}", "weight is unknown"),
        ("power_mw: {value: -1, source: x}", "power_mw is -1; allowed: from 0"),
        ("power_mw: {value: dark, source: x}", "power_mw is 'dark'; allowed: a whole number"),
        ("power_mw: {value: 7.0, source: x}", "power_mw is 7.0; allowed: a whole number"),
        ("power_mw: {value: true, source: x}", "power_mw is True; allowed: a whole number"),
        ("power_mw: {value: [7], source: x}", "power_mw is [7]; allowed: a whole number"),
        ("{power_mw: {value: 7, source: x}, colours: {value: red, source: x}}", "'red'; allowed: a list"),
        ("{power_mw: {value: 7, source: x}, colours: {value: [1], source: x}}", "colours is 1; allowed"),
        (
            "{power_mw: {value: 7, source: x}, efficiency: {value: .nan, source: x}}",
            "efficiency is nan; allowed: a finite number",
        ),
        (
            "{power_mw: {value: 7, source: x}, dimmable: {value: 1, source: x}}",
            "dimmable is 1; allowed: true or false",
        ),
        ("power_mw: [", "no YAML"),
        ("power_mw: {value: 7, source: }", "power_mw is"),
        ("power_mw: {value: 7, source: 12}", "allowed: {value: ..., source: text}"),
        ("power_mw: {value: 7, source: [x]}", "allowed: {value: ..., source: text}"),
        ("power_mw: {value: 7, value: 8, source: x}", "a key is given twice"),
        ("{power_mw: {value: 7, source: x}, power_mw: {value: 8, source: x}}", "a key is given twice"),
        ("{power_mw: {value: 7, source: x}, 5: {value: 8, source: x}}", "5 is unknown"),
    ],
)
def test_refused_with_the_file_named(tmp_path, parameters, message):
    with pytest.raises(ValueError, match=r"bulb\.yaml: ") as caught:
        read_profile(write(tmp_path, parameters), "lamp", Lamp)
    assert message in str(caught.value)


def test_other_kind(tmp_path):
    path = write(tmp_path, "power_mw: {value: 7, source: x}", kind="ssd")
    with pytest.raises(ValueError, match="kind is 'ssd'; allowed here: 'lamp'"):
        read_profile(path, "lamp", Lamp)


def test_unknown_name():
    with pytest.raises(ValueError, match="lamp profile is 'nothing'; allowed"):
        named_profile("lamp", "nothing", Lamp)


def test_own_profiles_stand_beside_those_that_ship(tmp_path, monkeypatch):
    folder = tmp_path / "mine" / "lamp"
    folder.mkdir(parents=True)
    monkeypatch.setenv("NEARKV_PROFILES", str(tmp_path / "mine"))
    write(folder, "power_mw: {value: 7, source: label}")
    assert named_profile("lamp", "bulb", Lamp).config == Lamp(7)
    with pytest.raises(ValueError, match=r"ssd profile is 'bulb'; allowed: .*pm983"):
        named_profile("ssd", "bulb", Lamp)


def test_an_own_profile_does_not_replace_one_that_ships(tmp_path, monkeypatch):
    folder = tmp_path / "ssd"
    folder.mkdir()
    (folder / "pm983.yaml").write_text("kind: ssd\n")
    monkeypatch.setenv("NEARKV_PROFILES", str(tmp_path))
    with pytest.raises(ValueError, match=r"pm983\.yaml: ssd profile pm983 is there twice"):
        named_profile("ssd", "pm983", Lamp)


def test_a_folder_of_own_profiles_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("NEARKV_PROFILES", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"NEARKV_PROFILES is .*nowhere"):
        named_profile("ssd", "pm983", Lamp)
