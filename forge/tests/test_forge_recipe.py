"""The recipe end to end, small: files, metrics, determinism, staleness, and environments of the user's own."""

import asyncio
import json
from dataclasses import replace

import pytest

from forge.config import GrpoConfig, ModelConfig, TaskConfig, WarmUpConfig
from forge.config_files import load as load_config
from forge.errors import ConfigError
from forge.models import load
from forge.recipes import grpo
from forge.run_directory import read_metrics, read_rollouts
from forge.samples import Episode
from forge.tasks import SortTask

pytestmark = pytest.mark.unit


def config(tmp_path, **changes):
    settings = {
        "steps": 3,
        "groups_per_step": 2,
        "group_size": 4,
        "out": str(tmp_path),
        "model": ModelConfig(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2),
        "task": TaskConfig(options={"digits": 2, "held_out_size": 8}),
        "warm_up": WarmUpConfig(max_steps=4, batch_size=8, until=1.0, check_every=2),
    }
    return GrpoConfig(**{**settings, **changes})


def run(configuration, **options):
    return asyncio.run(asyncio.wait_for(grpo.run(configuration, **options), 120))


def test_a_run_leaves_a_directory_that_can_be_read(tmp_path):
    seen = []
    result = run(config(tmp_path, eval_every=2), on_step=seen.append)
    metrics = read_metrics(result.run_dir)
    assert [line["step"] for line in metrics] == [0, 1, 2, 3, 3]
    assert [line["step"] for line in metrics if "eval/greedy" in line] == [0, 2, 3]
    assert seen == result.history
    wanted = {"reward/mean", "reward/std", "zero_variance_share", "truncation_share", "entropy", "mismatch_kl"}
    wanted |= {"clip_share", "grad_norm", "policy_age/min", "policy_age/mean", "policy_age/max", "tokens_per_second"}
    wanted |= {"time/wait", "time/generate", "time/train", "time/sync", "time/step", "reward/places", "reward/exact"}
    assert wanted <= set(seen[0])
    assert load_config(GrpoConfig, result.run_dir / "config.toml") == config(tmp_path, eval_every=2)
    step, rollouts = read_rollouts(result.run_dir)
    assert (step, len(rollouts)) == (3, 8)
    assert rollouts[0]["sources"][:3] == [0, 0, 0]
    model, tokenizer = load(result.weights_dir)
    assert len(tokenizer) == model.config.vocab_size
    report = (result.run_dir / "report.html").read_text()
    assert "<polyline" in report
    assert "reward/mean" in report
    assert (result.sync, len(result.processes), len(result.after.rollouts)) == ("message", 1, 8)
    assert result.parity < 1e-4


def test_on_policy_runs_repeat_exactly_and_are_on_policy(tmp_path):
    first, second = run(config(tmp_path)), run(config(tmp_path))
    untimed = [
        [{name: value for name, value in line.items() if "time" not in name and "second" not in name} for line in lines]
        for lines in (first.history, second.history)
    ]
    assert untimed[0] == untimed[1]
    assert all(line["mismatch_max"] < 1e-4 and line["policy_age/max"] == 0 for line in first.history)


def test_an_asynchronous_run_keeps_its_bound(tmp_path):
    history = run(config(tmp_path, steps=6, max_staleness=1)).history
    assert {line["policy_age/max"] for line in history[2:]} == {1.0}
    assert history[0]["policy_age/max"] == 0.0


def test_no_steps_only_evaluates(tmp_path):
    result = run(config(tmp_path, steps=0))
    assert result.history == []
    assert result.before.greedy == result.after.greedy


class TwoTurns(SortTask):
    """Asks once more when the first answer is wrong; a completion that never ends cannot be scored."""

    async def rollout(self, problem, policy):
        first = await policy.generate(policy.tokenizer.encode(problem.prompt))
        again = [*first.prompt_ids, *first.token_ids, *policy.tokenizer.encode("=")]
        second = await policy.generate(again)
        text = policy.tokenizer.decode(second.token_ids)
        right = None if second.finish_reason == "length" else float(text == problem.answer)
        return Episode([first, second], {"right": right}, right == 1.0, text)


def test_an_environment_of_the_users_own_with_several_turns(tmp_path):
    task = TaskConfig(name=f"{__name__}:TwoTurns", options={"digits": 2, "held_out_size": 4})
    import sys

    sys.modules.setdefault(__name__, sys.modules[TwoTurns.__module__])
    result = run(config(tmp_path, task=task, algorithm="rloo"))
    _, rollouts = read_rollouts(result.run_dir)
    assert any(2 in rollout["sources"] for rollout in rollouts)
    assert any(rollout["reward"] is None for rollout in rollouts)
    assert result.history[-1]["reward/unscorable_share"] > 0
    json.dumps(rollouts)


class Broken(SortTask):
    async def rollout(self, problem, policy):
        raise RuntimeError("the sandbox is gone")


def test_an_environments_error_ends_the_run_with_its_message(tmp_path):
    import sys

    sys.modules.setdefault(__name__, sys.modules[Broken.__module__])
    task = TaskConfig(name=f"{__name__}:Broken", options={"digits": 2, "held_out_size": 4})
    with pytest.raises(RuntimeError, match="the sandbox is gone"):
        run(config(tmp_path, task=task, warm_up=WarmUpConfig()))


def test_what_cannot_run_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"package\.module:Class"):
        run(config(tmp_path, task=TaskConfig(name="sorting")))
    with pytest.raises(ConfigError, match="nothing to train on"):
        run(config(tmp_path, task=TaskConfig(options={"digits": 1, "held_out_size": 10})))
    with pytest.raises(ConfigError, match="nor a module path"):
        run(replace(config(tmp_path), algorithm="ppo"))
