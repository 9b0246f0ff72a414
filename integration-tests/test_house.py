"""What every package here keeps to: file sizes, sorted public names, declared dependencies, light contracts."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("executor", "forge", "helium", "monarch", "torchcomms")
CONTRACTS = ("torchcomms.backend", "helium.contract", "monarch.spec")
LONGEST_FILE = 400


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package / "src").rglob("*.py"))


def declared(package: str) -> set[str]:
    """Import names of what a package declares, extras included; its siblings are left out."""
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    requirements = chain(project["dependencies"], *project["optional-dependencies"].values())
    names = {re.match(r"[A-Za-z0-9_-]+", requirement).group().lower() for requirement in requirements}
    return {name.replace("-", "_") for name in names if not name.startswith("pentad-")}


def imported(path: Path) -> set[str]:
    """Top-level names of every absolute import in a file, those for typing only left out."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for child in branch.body
        for node in ast.walk(child)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_one_file_one_idea(package):
    assert sources(package), f"{package} has no source files"
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in sources(package)}
    assert {path: n for path, n in lengths.items() if n > LONGEST_FILE} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package):
    assert [path for path in sources(package) if not ast.get_docstring(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_sorted_and_there(package):
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_declared_and_no_sibling_is_among_them(package):
    allowed = set(sys.stdlib_module_names) | declared(package) | {package}
    undeclared = {(str(path.relative_to(ROOT)), name) for path in sources(package) for name in imported(path) - allowed}
    assert undeclared == set()


@pytest.mark.parametrize("contract", CONTRACTS)
def test_contract_modules_import_no_framework(contract):
    script = f"import sys, {contract}; print(sorted({{'torch', 'triton', 'ray'}} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "[]"


def test_versions_agree_with_metadata():
    from importlib.metadata import version

    for package in PACKAGES:
        assert importlib.import_module(package).__version__ == version(f"pentad-{package}")


def test_each_package_carries_the_licence():
    licence = (ROOT / "LICENSE").read_text()
    assert all((ROOT / package / "LICENSE").read_text() == licence for package in PACKAGES)
