"""Importing: lazily, in either order with torch, with a warning on a clash; and the contract's committed signatures."""

import inspect
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import torchcomms
import torchcomms.backend

LISTING = Path(__file__).parent / "contract-v1.txt"


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.system
def test_the_package_and_its_contract_import_no_torch():
    heavy = "sorted({'torch', 'triton', 'ray', 'numpy'} & set(sys.modules))"
    code = f"import sys, torchcomms, torchcomms.backend, torchcomms.discovery, torchcomms.cli; print({heavy})"
    assert python(code).strip() == "[]"


@pytest.mark.system
@pytest.mark.parametrize("first", ["torch", "torchcomms"])
def test_both_import_orders_work(first):
    second = "torch" if first == "torchcomms" else "torchcomms"
    assert (
        python(f"import {first}, {second}; print(torchcomms.new_comm.__name__, torch.ones(1).item())")
        == "new_comm 1.0\n"
    )


@pytest.mark.unit
def test_torch_finds_none_of_its_own_names_here():
    package = Path(torchcomms.__file__).parent
    assert not [name for name in ("_comms", "_backend_wrapper") if list(package.glob(f"{name}*"))]


@pytest.mark.unit
def test_every_public_name_loads():
    assert torchcomms.__all__ == sorted(torchcomms.__all__)
    assert all(getattr(torchcomms, name) is not None for name in torchcomms.__all__)
    assert set(torchcomms.__all__) <= set(dir(torchcomms))
    with pytest.raises(AttributeError, match="new_comm"):
        torchcomms.no_such_name  # noqa: B018


@pytest.mark.unit
def test_version_is_that_of_the_distribution():
    assert torchcomms.__version__ == metadata.version("pentad-torchcomms")


@pytest.mark.unit
def test_a_distribution_that_owns_the_same_package_is_named(monkeypatch):
    monkeypatch.setattr(torchcomms, "version", {"torchcomms": "9.9"}.__getitem__)
    with pytest.warns(UserWarning, match=r"torchcomms 9\.9 and pentad-torchcomms both own"):
        torchcomms._warn_of_clashes()


def listing() -> str:
    """Every public name of the contract module with its signature."""
    lines = [f"interface {torchcomms.backend.Backend.interface}"]
    for name in torchcomms.backend.__all__:
        kind = getattr(torchcomms.backend, name)
        fields = ", ".join(getattr(kind, "__dataclass_fields__", ()))
        lines.append(f"{name}({fields})")
        for member, value in sorted(vars(kind).items()):
            plain = getattr(value, "__func__", value)
            if not member.startswith("_") and inspect.isfunction(plain):
                mark = " abstract" if getattr(plain, "__isabstractmethod__", False) else ""
                lines.append(f"    {member}{inspect.signature(plain)}{mark}")
    return "\n".join(lines) + "\n"


@pytest.mark.unit
def test_the_contract_changes_only_on_purpose():
    assert listing() == LISTING.read_text(), f"if meant, raise the minor and write this to {LISTING.name}:\n{listing()}"
