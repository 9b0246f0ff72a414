"""The published contract: what a spec accepts, its JSON, its signatures, and how launchers are found."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest

import monarch
import monarch.actor
from monarch import ActorSpec
from monarch.distributions import warn_of_clashes
from monarch.errors import LauncherBroken, LauncherConflict, SpecError, UnknownLauncher

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"actor": "no_colon"}, "actor"),
        ({"actor": 3}, "actor"),
        ({"extent": {}}, "extent"),
        ({"extent": {"procs": 0}}, "extent"),
        ({"extent": {"procs": True}}, "extent"),
        ({"extent": {"my procs": 1}}, "extent"),
        ({"resources": {"tpus": 1}}, "resources"),
        ({"resources": {"gpus": -1}}, "resources"),
        ({"resources": {"cpus": float("inf")}}, "resources"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"env": {"A": 1}}, "env"),
        ({"restart": "always"}, "restart"),
        ({"restart": "never:max=3/60s"}, "restart"),
        ({"endpoints": "add"}, "endpoints"),
        ({"endpoints": ("not a name",)}, "endpoints"),
        ({"endpoints": ("add",), "idempotent": frozenset({"sub"})}, "idempotent"),
    ],
)
def test_bad_spec_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        ActorSpec(**({"actor": "m:C"} | changes))
    assert caught.value.field == field
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("restart", ["never", "one_for_one", "one_for_all:max=3/60s", "rest_for_one"])
def test_restart_policies(restart: str) -> None:
    assert ActorSpec("m:C", restart=restart).restart == restart


def test_spec_comes_back_from_json() -> None:
    spec = ActorSpec(
        "package.module:Class",
        args=(1, [2.5, None]),
        kwargs={"k": {"a": "b"}},
        name="n",
        extent={"dp": 2, "tp": 3},
        resources={"cpus": 2},
        env={"A": "b"},
        restart="one_for_one:max=3/60s",
        endpoints=("x", "y"),
        idempotent=frozenset({"y"}),
    )
    assert ActorSpec.from_json(spec.to_json()) == spec
    assert spec.size == 6


def test_spec_of_a_class_is_written_by_its_path() -> None:
    assert ActorSpec.from_json(ActorSpec(Path).to_json()).actor == f"{Path.__module__}:Path"


@pytest.mark.parametrize("argument", [(1, 2), object(), {3}])
def test_argument_without_json_form_is_refused(argument: object) -> None:
    with pytest.raises(SpecError) as caught:
        ActorSpec("m:C", args=(argument,)).to_json()
    assert caught.value.field == "args"


def test_unknown_key_in_json_is_named() -> None:
    with pytest.raises(SpecError, match="unknown keys colour"):
        ActorSpec.from_json('{"actor": "m:C", "colour": "red"}')


def test_spec_does_not_change_with_the_mapping_it_was_made_of() -> None:
    extent = {"procs": 2}
    spec = ActorSpec("m:C", extent=extent)
    extent["procs"] = 3
    assert spec.extent == {"procs": 2}


# --- launchers --------------------------------------------------------------------------------------------------


def test_local_is_listed_without_an_import_and_found() -> None:
    code = "import sys, monarch; print(monarch.launchers()); assert 'monarch.launchers.local' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "local" in result.stdout
    assert monarch.find_launcher("local")().name == "local"


def test_unknown_launcher_says_what_there_is() -> None:
    with pytest.raises(UnknownLauncher, match=r"'slurm'; installed: .*local"):
        monarch.find_launcher("slurm")


class Installed(Distribution):
    """A distribution that is only metadata."""

    def __init__(self, name: str) -> None:
        self.named = name

    def read_text(self, filename: str) -> str | None:
        return f"Name: {self.named}\nVersion: 1.0\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


def install(monkeypatch: pytest.MonkeyPatch, value: str, *distributions: str) -> None:
    entries = []
    for name in distributions:
        entry = EntryPoint("x", value, "monarch.launchers.v1")
        vars(entry)["dist"] = Installed(name)
        entries.append(entry)
    monkeypatch.setattr(sys.modules["monarch.launchers"], "entry_points", lambda **query: entries)


def test_two_providers_of_one_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "monarch.launchers.local:make", "one", "two")
    with pytest.raises(LauncherConflict, match=r"one 1\.0 and by two 1\.0"):
        monarch.find_launcher("x")


def needs_an_option(option: int) -> None:
    """Not a maker of launchers."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no.such.module:make", "cannot be imported"),
        ("monarch.spec:interface", "must be make"),
        ("re:sub", "no option"),
    ],
)
def test_launcher_that_cannot_be_used_names_its_distribution(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    install(monkeypatch, value, "broken")
    with pytest.raises(LauncherBroken, match=message) as caught:
        monarch.find_launcher("x")
    assert "broken 1.0" in str(caught.value)


# --- the package ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["monarch", "monarch.spec", "monarch.actor", "monarch.testing"])
def test_import_brings_no_framework(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'ray', 'cloudpickle'}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("module", [monarch, monarch.actor])
def test_all_is_sorted_and_there(module: Any) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_clash_of_distributions_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="also owns the import name monarch"):
        warn_of_clashes(("pytest",))


def contract() -> str:
    """Every signature of the contract module: a change here is a change of the interface."""
    tree = ast.parse(Path(monarch.spec.__file__).read_text())
    lines = [f"interface = {monarch.spec.interface}"]
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        lines.append(f"class {cls.name}({', '.join(map(ast.unparse, cls.bases))}):")
        for node in cls.body:
            if isinstance(node, ast.AnnAssign):
                lines.append(f"    {ast.unparse(node)}")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__post_init__":
                kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
                returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
                lines.append(f"    {kind} {node.name}({ast.unparse(node.args)}){returns}")
    return "\n".join(lines) + "\n"


def test_contract_has_the_committed_signatures() -> None:
    assert contract() == (Path(__file__).parent / "contract-v1.txt").read_text()
