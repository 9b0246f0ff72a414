"""The package itself: exports, version, the warning about a namesake, imports, README and examples."""

import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import helium
from helium import errors, exc, installed, library

ROOT = Path(__file__).parents[1]


@pytest.mark.unit
def test_exports_are_sorted_and_there():
    for module in (helium, exc, library, helium.language):
        assert module.__all__ == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.unit
def test_version_is_the_distributions():
    assert helium.__version__ == metadata.version("pentad-helium") == "0.1.0"


@pytest.mark.unit
def test_a_namesake_is_warned_of():
    with pytest.warns(RuntimeWarning, match="'pytest' .* owns the import name 'helium' too"):
        installed.warn_of_others(["pytest", "no-such-distribution"])


@pytest.mark.unit
def test_every_error_is_listed_drawn_and_also_a_builtin():
    leaves = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.HeliumError)]
    assert {c.__name__ for c in leaves} == set(exc.__all__)
    for leaf in leaves:
        assert leaf.__name__ in (errors.__doc__ or "")
        if not leaf.__subclasses__():
            builtins = [
                b for b in leaf.__mro__ if b.__module__ == "builtins" and b not in (Exception, BaseException, object)
            ]
            assert builtins, leaf


@pytest.mark.unit
def test_codes_of_kernel_errors_are_distinct():
    codes = [c.code for c in errors.KernelError.__subclasses__()]
    assert len(codes) == len(set(codes))


@pytest.mark.system
def test_import_changes_nothing_and_leaves_triton_alone():
    program = (
        "import os, sys, logging, torch; before = dict(os.environ), torch.get_num_threads(), logging.root.handlers[:]\n"
        "import helium; after = dict(os.environ), torch.get_num_threads(), logging.root.handlers[:]\n"
        "assert before == after; assert 'triton' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.unit
def test_readme_example_runs(capsys, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(blocks[0])
    runpy.run_path(str(script))
    assert "of the roofline" in capsys.readouterr().out


@pytest.mark.unit
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
