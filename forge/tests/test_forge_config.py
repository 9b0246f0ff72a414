"""Configurations: TOML and overrides in, precise errors for what is wrong, and TOML out again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config import GrpoConfig, KernelConfig, LossConfig, ModelConfig, SamplingConfig, TaskConfig
from forge.config_files import dump, from_mapping, load, parse_overrides
from forge.errors import ConfigError

pytestmark = pytest.mark.unit


def test_a_file_with_overrides_on_top(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('steps = 3\n[optimizer]\nlr = 1\n[task]\nname = "sort"\noptions = {digits = 4}\n')
    config = load(GrpoConfig, path, ["--optimizer.lr", "1e-4", "--loss.micro-batch=8", "--model.path", "a dir"])
    assert (config.steps, config.optimizer.lr, config.loss.micro_batch) == (3, 1e-4, 8)
    assert (config.model.path, config.task.options) == ("a dir", {"digits": 4})


@pytest.mark.parametrize(
    ("values", "message", "key"),
    [
        ({"step": 3}, "unknown key step; did you mean steps?", "step"),
        ({"optimizer": {"learning_rate": 1.0}}, "unknown key optimizer.learning_rate", "optimizer.learning_rate"),
        ({"optimizer": {"lrr": 1.0}}, "did you mean optimizer.lr?", "optimizer.lrr"),
        ({"steps": "many"}, "steps is 'many'; it must be a int", "steps"),
        ({"steps": True}, "steps is True", "steps"),
        ({"optimizer": 3}, "optimizer is 3; it must be a table", "optimizer"),
        ({"loss": {"ratio": "tokens"}}, "'token' or 'sequence'", "loss.ratio"),
        ({"loss": {"clip": [0.2]}}, "give low and high", "loss.clip"),
        ({"loss": {"aggregate": "mean"}}, "loss.aggregate is 'mean'", "loss.aggregate"),
        ({"sampling": {"temperature": 0}}, "training needs it positive", "sampling.temperature"),
        ({"group_size": 0}, "at least 1", "group_size"),
        ({"steps": -1}, "cannot be negative", "steps"),
    ],
)
def test_what_is_wrong_is_named(values, message, key):
    with pytest.raises(ConfigError) as caught:
        from_mapping(GrpoConfig, values)
    assert message in str(caught.value)
    assert caught.value.key == key


def test_lists_become_tuples_and_lengths_may_aggregate():
    config = from_mapping(GrpoConfig, {"loss": {"clip": [0.1, 0.3], "aggregate": 16}, "optimizer": {"lr": 1}})
    assert (config.loss.clip, config.loss.aggregate, config.optimizer.lr) == ((0.1, 0.3), 16, 1.0)


def test_overrides_are_toml_where_they_can_be():
    assert parse_overrides(["--a.b-c", "1", "--d=x y", "--e", "[1, 2]", "--f", "-3"]) == {
        "a.b_c": 1,
        "d": "x y",
        "e": [1, 2],
        "f": -3,
    }
    for wrong in (["steps", "3"], ["--steps"], ["--", "3"]):
        with pytest.raises(ConfigError, match="no override"):
            parse_overrides(wrong)
    with pytest.raises(ConfigError, match="steps is a value"):
        load(GrpoConfig, None, ["--steps", "3", "--steps.x", "4"])


def test_files_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(GrpoConfig, tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("steps =")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(GrpoConfig, tmp_path / "broken.toml")


@given(
    st.builds(
        GrpoConfig,
        steps=st.integers(0, 9),
        name=st.text(),
        sync_timeout=st.floats(0, 1e9),
        model=st.builds(ModelConfig, path=st.text()),
        task=st.builds(
            TaskConfig,
            options=st.dictionaries(st.text(), st.booleans() | st.integers(-9, 9) | st.text() | st.floats(0, 1)),
        ),
        sampling=st.builds(SamplingConfig, temperature=st.floats(0.01, 5)),
        loss=st.builds(LossConfig, clip=st.sampled_from([(), (0.1, 0.4)]), aggregate=st.sampled_from(["sequence", 9])),
        kernels=st.builds(KernelConfig, rms_norm=st.text()),
    )
)
def test_what_is_dumped_loads_equal(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("dumped") / "config.toml"
    path.write_text(dump(config), encoding="utf-8")
    assert load(GrpoConfig, path) == config


def test_what_toml_cannot_say_is_refused():
    with pytest.raises(ConfigError, match="no TOML form"):
        dump(GrpoConfig(task=TaskConfig(options={"when": None})))
