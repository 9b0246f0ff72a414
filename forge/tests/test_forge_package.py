"""The package as a whole: light imports, clashing distributions, providers by name, and what the README says."""

import io
import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import forge
from forge import distributions, providers
from forge.cli import commands
from forge.cli.display import COLUMNS, Display
from forge.cli.main import app
from forge.errors import ConfigError, ForgeError, ProviderError
from forge.launch import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.unit
def test_public_names_are_sorted_and_there():
    assert list(forge.__all__) == sorted(forge.__all__)
    assert all(hasattr(forge, name) for name in forge.__all__)
    assert forge.__version__ == metadata.version("pentad-forge")


@pytest.mark.unit
@pytest.mark.parametrize("name", distributions.CLASHING)
def test_a_distribution_of_the_same_import_name_is_warned_of(monkeypatch, name):
    def version(asked):
        if asked != name:
            raise metadata.PackageNotFoundError(asked)
        return "0.0.1"

    monkeypatch.setattr(distributions.metadata, "version", version)
    with pytest.warns(RuntimeWarning, match=f"{name} 0.0.1 and pentad-forge both"):
        distributions.warn_of_clashes()


@pytest.mark.system
def test_help_and_the_command_line_import_no_torch():
    script = "import sys, forge.cli, forge.spec, forge.config; print('torch' in sys.modules, 'rich' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert output.stdout.split() == ["False", "False"]


@pytest.mark.unit
def test_every_error_is_forges_and_a_builtin():
    from forge import errors

    leaves = [getattr(errors, name) for name in errors.__all__ if name != "ForgeError"]
    builtin = (ValueError, RuntimeError, LookupError, ImportError)
    assert all(issubclass(leaf, ForgeError) and issubclass(leaf, builtin) for leaf in leaves)
    assert all(leaf.__name__ in errors.__doc__ for leaf in leaves)
    assert ProviderError("m", name="x").name == "x"


class Point:
    """An entry point, as importlib.metadata gives it."""

    def __init__(self, name, value, distribution, loaded=None):
        self.name, self.value, self.loaded = name, value, loaded
        self.dist = type("Distribution", (), {"name": distribution, "version": "1.2"})()

    def load(self):
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


def points(monkeypatch, *given):
    monkeypatch.setattr(providers.metadata, "entry_points", lambda group: given)


@pytest.mark.unit
def test_providers_are_listed_without_importing_and_loaded_by_name(monkeypatch):
    points(monkeypatch, Point("b", "m:B", "one", 5), Point("a", "m:A", "two", ImportError("no such library")))
    assert list(providers.names("group")) == ["a", "b"]
    assert providers.load("group", "b", install="x") == 5
    with pytest.raises(ProviderError, match=r"there is: a, b\); pip install 'x'"):
        providers.load("group", "c", install="x")
    with pytest.raises(ProviderError, match=r"comes from two 1\.2.*no such library") as caught:
        providers.load("group", "a", install="x")
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.unit
def test_two_providers_of_one_name_are_an_error_naming_both(monkeypatch):
    points(monkeypatch, Point("a", "m:A", "one"), Point("a", "n:A", "two"))
    with pytest.raises(ProviderError, match=r"one 1\.2 and two 1\.2; uninstall one"):
        providers.load("group", "a", install="x")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("interface", "fits"), [((1, 0), True), ((1, 3), True), ((0, 9), False), ((2, 0), False), (None, False)]
)
def test_interfaces_fit_by_major_and_minor(interface, fits):
    provider = type("Provider", (), {"interface": interface})
    if fits:
        providers.check_interface(provider, "p", (1, 0))
    else:
        with pytest.raises(ProviderError, match=r"forge needs 1\.0"):
            providers.check_interface(provider, "p", (1, 0))


@pytest.mark.unit
def test_launchers_that_break_the_contract_are_refused(monkeypatch):
    assert load("inline").name == "inline"
    points(monkeypatch, Point("odd", "m:A", "one", lambda: type("Odd", (), {"interface": (1, 0), "close": print})()))
    with pytest.raises(ProviderError, match="has no launch"):
        load("odd")
    points(monkeypatch, Point("odd", "m:A", "one", 5))
    with pytest.raises(ProviderError, match="must name make"):
        load("odd")


@pytest.mark.unit
def test_the_readmes_example_runs(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
    output = capsys.readouterr().out.splitlines()
    assert len(output) == 12
    assert output[-2].startswith("solved ")
    (report,) = Path().glob("runs/*/report.html")
    assert str(report) in output[-1]


@pytest.mark.unit
def test_the_example_of_an_own_task_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import count_letters

    count_letters.main(2)
    assert "solved before" in capsys.readouterr().out


def forge_command(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def plain_console(monkeypatch):
    """rich looks for its stream when it is made, which is before the runner replaces it."""
    monkeypatch.setattr(commands, "console", Console(file=None, width=200))


@pytest.mark.unit
def test_the_command_line_from_training_to_viewing(tmp_path, plain_console):
    command = ["train", ROOT / "examples" / "sort.toml", "--out", tmp_path, "--steps", "2", "--warm-up.max-steps", "2"]
    small = ["--group-size=4", "--task.options", "{digits = 3, held_out_size = 8}", "--model.hidden-size", "32"]
    assert "steps = 2" in forge_command(*command, *small, "--dry-run")
    assert list(tmp_path.iterdir()) == []
    output = forge_command(*command, *small)
    assert "step=1 " in output
    assert "solved, greedy" in output
    (run,) = tmp_path.iterdir()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4
    assert json.loads((run / "rollouts" / "step_2.jsonl").read_text().splitlines()[0])["prompt"].endswith("=")
    assert "8 held-out problems: greedy" in forge_command("eval", run)
    assert "step 2" in forge_command("view", run, "--limit", "2", "--tokens")
    assert forge_command("generate", run, "312=", "--max-tokens", "4").strip() != "312="
    with pytest.raises(ConfigError, match="holds no weights"):
        forge_command("generate", tmp_path, "312=")


@pytest.mark.unit
def test_a_terminal_shows_a_table(tmp_path):
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    metrics = dict.fromkeys(COLUMNS, 0.25)
    with Display(console, steps=2) as display:
        display.step(metrics | {"step": 1.0})
        display.step(metrics | {"step": 2.0})
    assert "reward/mean" in console.file.getvalue()


@pytest.mark.system
def test_a_wrong_key_is_one_line():
    command = [sys.executable, "-m", "forge", "train", str(ROOT / "examples" / "sort.toml"), "--step", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == "forge: unknown key step; did you mean steps?"
