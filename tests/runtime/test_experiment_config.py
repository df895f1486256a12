"""Configuration files: strict keys, types, ranges, overrides, and the way back to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig, ScoreFormat, Selection, load_config

MINIMAL = "trace: a.safetensors\npolicy: {name: hill}\n"


@pytest.fixture
def load(tmp_path):
    def load(text: str, *overrides: str) -> ExperimentConfig:
        (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
        return load_config(tmp_path / "run.yaml", overrides)

    return load


def test_defaults(load, tmp_path):
    config = load(MINIMAL)
    assert config == ExperimentConfig(trace=tmp_path / "a.safetensors", policy=PolicyConfig("hill"))
    assert (config.recent_fraction, config.hot_fraction, config.select_fraction) == (0.1, 0.2, 0.1)
    assert (config.format, config.selection, config.uniform_score) == (
        ScoreFormat.INT8,
        Selection.SCORE_ALL,
        False,
    )


def test_every_key_is_read(load, tmp_path):
    config = load(
        """
        trace: sub/a.safetensors
        streams: [L0.H0, L1.H0]
        design: tiny
        transport: rtl
        link: gen4_x4
        policy: {name: hill, options: {decay_shift: 2, surge: 1}}
        recent_fraction: 0
        hot_fraction: 0.5
        select_fraction: 1
        sinks: 7
        format: int4
        selection: score_all
        selection_unit: layer
        head_merge: raw
        uniform_score: true
        machine: hillinfer
        model: llama2_7b
        batch: 3
        context_tokens: 4096
        link_cap: 0.7
        machine_every: 2
        steps: 9
        seed: 5
        """
    )
    assert config.to_mapping() == {
        "trace": (tmp_path / "sub" / "a.safetensors").as_posix(),
        "policy": {"name": "hill", "options": {"decay_shift": 2, "surge": 1}},
        "streams": ["L0.H0", "L1.H0"],
        "design": "tiny",
        "transport": "rtl",
        "link": "gen4_x4",
        "recent_fraction": 0.0,
        "hot_fraction": 0.5,
        "select_fraction": 1.0,
        "sinks": 7,
        "format": "int4",
        "selection": "score_all",
        "selection_unit": "layer",
        "head_merge": "raw",
        "uniform_score": True,
        "machine": "hillinfer",
        "model": "llama2_7b",
        "batch": 3,
        "context_tokens": 4096,
        "link_cap": 0.7,
        "machine_every": 2,
        "steps": 9,
        "seed": 5,
    }
    assert load(config.to_yaml()) == config


def test_overrides_reach_into_mappings_and_have_yaml_types(load):
    config = load(MINIMAL, "policy.options.decay_shift=1", "steps=4", "uniform_score=true", "streams=[L0.H0]")
    assert config.policy.options == {"decay_shift": 1, "surge": 0.0}  # defaults are filled in
    assert (config.steps, config.uniform_score, config.streams) == (4, True, ("L0.H0",))
    assert load(MINIMAL + "steps: 3", "steps=null").steps is None
    assert (
        load(MINIMAL, "policy={name: hill}", "policy.options.decay_shift=1").policy.options["decay_shift"]
        == 1
    )


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "+1.e-3", "0.001", "1.0e-3"])
def test_a_number_may_have_an_exponent_without_a_point(load, text):
    assert load(MINIMAL, f"select_fraction={text}").select_fraction == 0.001
    assert load(MINIMAL + f"select_fraction: {text}").select_fraction == 0.001


def test_text_that_looks_like_a_number_stays_text_in_the_file_written(load):
    streams = ("1e3", "L0.H0", "5", "null", "12e-1x")
    config = load(MINIMAL + f"streams: {list(streams)}")
    assert config.streams == streams
    assert load(config.to_yaml()) == config


@pytest.mark.parametrize(
    "overrides",
    [
        ("steps=3", "steps=4"),
        ("seed=1", "seed=1"),
        ("policy.name=lru", "policy.name=hill"),
        ("policy.options.decay_shift=1", "policy.options={}"),
        ("policy.name=lru", "policy={name: hill}"),
    ],
)
def test_an_override_that_would_undo_another_is_refused(load, overrides):
    with pytest.raises(
        ValueError, match=f"override '{overrides[1]}' replaces '{overrides[0]}'; allowed: one"
    ):
        load(MINIMAL, *overrides)


def test_the_trace_is_relative_to_whoever_names_it(load, tmp_path):
    assert load("trace: ../b\npolicy: {name: full}").trace == tmp_path.parent / "b"
    assert load(MINIMAL, "trace=b").trace == Path("b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trace: a\npolcy: {name: hill}", r"run.yaml: unknown key 'polcy'; allowed: trace, policy, .*seed"),
        ("trace: a\npolicy: {nam: hill}", r"run.yaml: policy: unknown key 'nam'; allowed: name, options"),
        ("policy: {name: hill}", "the key 'trace' is missing"),
        ("trace: a\npolicy: {}", "policy: the key 'name' is missing"),
        ("trace: a\npolicy: hill", "policy is 'hill'; allowed: a mapping"),
        (MINIMAL + "steps: 3\nsteps: 4", "line 1: the key 'steps' is given twice"),
        (MINIMAL + "steps: [", "not YAML"),
        ("- a\n- b", "holds list; allowed: a mapping"),
        ("", "holds NoneType; allowed: a mapping"),
        (MINIMAL + "steps: many", "steps is 'many'; allowed: a whole number"),
        (MINIMAL + "steps: 2.5", "steps is 2.5; allowed: a whole number"),
        (MINIMAL + "steps: true", "steps is True; allowed: a whole number"),
        (MINIMAL + "steps: 0", "steps is 0; allowed: 1 or more, or null for all"),
        (MINIMAL + "seed: -1", "seed is -1; allowed: 0 or more"),
        (MINIMAL + "sinks: -1", "sinks is -1; allowed: 0 or more"),
        (MINIMAL + "hot_fraction: 1.5", "hot_fraction is 1.5; allowed: 0 to 1"),
        (MINIMAL + "hot_fraction: .nan", "hot_fraction is nan; allowed: 0 to 1"),
        (MINIMAL + "hot_fraction: '.2'", "hot_fraction is '.2'; allowed: a number"),
        (
            MINIMAL + "recent_fraction: 0.3",
            r"recent_fraction is 0.3; allowed: 0 to hot_fraction, 0.2",
        ),
        (MINIMAL + "select_fraction: 0", "select_fraction is 0.0; allowed: above 0, to 1"),
        (MINIMAL + "format: int2", "format is 'int2'; allowed: int8, int4"),
        (MINIMAL + "format: [int8]", r"format is \['int8'\]; allowed: int8, int4"),
        (MINIMAL + "selection: best", "selection is 'best'; allowed: score_all, hot_only"),
        (MINIMAL + "uniform_score: 1", "uniform_score is 1; allowed: true or false"),
        (MINIMAL + "design: big", "design is 'big'; allowed: tiny, .*smartssd_ku15p"),
        (MINIMAL + "streams: L0.H0", "streams is 'L0.H0'; allowed: a list"),
        (MINIMAL + "streams: []", r"streams is \[\]; allowed: some names, or null for all"),
        (MINIMAL + "streams: [1]", "streams is 1; allowed: text"),
        ("trace: 3\npolicy: {name: hill}", "trace is 3; allowed: a path"),
        ("trace: a\npolicy: {name: hil}", "policy is 'hil'; allowed: .*hill"),
        ("trace: a\npolicy: {name: hill, options: {a: 1}}", "policy hill has no option 'a'"),
        ("trace: a\npolicy: {name: hill, options: 3}", "options is 3; allowed: a mapping"),
        (
            MINIMAL + "selection: hot_only\nuniform_score: true",
            "uniform_score is True; allowed: false: nothing is scored with selection hot_only",
        ),
        (MINIMAL + "selection: hot_only\nformat: int4", "format is int4; allowed: the default"),
        (MINIMAL + f"hot_fraction: 1{'0' * 400}", "hot_fraction is 10*; allowed: a number within"),
        (MINIMAL + "streams: " + "[" * 2000, "run.yaml: nested too deeply"),
        (
            MINIMAL + "streams: &a [L0.H0]\nsteps: *a",
            "run.yaml: it has an alias; allowed: values written out",
        ),
        (MINIMAL + "streams: &a [*a]", "it has an alias; allowed"),
        *(
            (
                f"trace: a\npolicy: {{name: hill, options: {{surge: {value}}}}}",
                f"surge {message}; allowed: text, ",
            )
            for value, message in (
                (".inf", "is inf"),
                ("[1, .nan]", "is nan"),
                ("2020-01-01", r"is datetime.date\(2020, 1, 1\)"),
                ("!!binary aGk=", "is b'hi'"),
                ("!!set {a}", "is {'a'}"),
            )
        ),
        (
            "trace: a\npolicy: {name: hill, options: {surge: {1: 2}}}",
            "policy: options: surge has the key 1; allowed: text",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_reason(load, text, message):
    with pytest.raises(ValueError, match=message):
        load(text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "override is 'steps'; allowed: key=value"),
        ("=3", "override is '=3'; allowed: key=value"),
        ("steps=", "override is 'steps='; allowed: a value, steps=null for none"),
        ("policy..name=a", "allowed: key=value"),
        ("stesp=3", "unknown key 'stesp'"),
        ("steps=[", r"'\[' is not a YAML value"),
        ("trace.name=a", "'trace' is 'a.safetensors', not a mapping"),
        ("policy.options.a.b=1", "policy hill has no option 'a'"),
        ("policy.options={surge: 1, surge: 2}", "override 'policy.options=.*the key 'surge' is given twice"),
        ("steps=&a [*a]", "override 'steps=.*: it has an alias; allowed"),
        ("steps=" + "[" * 2000, "override 'steps=.*: nested too deeply"),
        ("seed=" + "9" * 5000, "override 'seed=.*: Exceeds the limit"),
    ],
)
def test_a_wrong_override_is_refused(load, override, message):
    with pytest.raises(ValueError, match=message):
        load(MINIMAL, override)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streams": ("L9.H0",)}, "stream is 'L9.H0'; allowed: L0.H0, L1.H0"),
        ({"streams": ("L0.H0", "L0.H0")}, "stream is 'L0.H0'; allowed: each stream once"),
        ({"steps": 13}, "steps is 13; allowed: 1 to 12"),
    ],
)
def test_what_the_trace_does_not_have_is_refused(trace_of, changes, message):
    config = ExperimentConfig(trace=Path("a"), policy=PolicyConfig("hill"), **changes)
    with pytest.raises(ValueError, match=message):
        config.streams_of(trace_of())


def test_a_setting_without_effect_is_noted():
    full = ExperimentConfig(trace=Path("a"), policy=PolicyConfig("full"))
    assert "hot_fraction, recent_fraction and sinks have no effect" in full.notes[0]
    assert ExperimentConfig(trace=Path("a"), policy=PolicyConfig("hill")).notes == ()
