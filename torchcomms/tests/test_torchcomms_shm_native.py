"""The ways to come by the core: shipped, compiled once for all processes of a user, compiled for one, or not at all."""

import importlib
import os
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from torchcomms.backend import ReduceOp
from torchcomms.providers.shm import ShmBackend, ShmOptions, backend, build, native

needs_compiler = pytest.mark.skipif(
    build.compiler() is None or build.headers() is None, reason="no C compiler, or no Python.h"
)
NAME = "torchcomms.providers.shm._core"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache, and a compiler in a hurry."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", tuple("-O0" if flag == "-O2" else flag for flag in build.FLAGS))
    monkeypatch.setattr(native, "load", native.load.__wrapped__)
    return tmp_path / "torchcomms"


def total(core, monkeypatch):
    """What three ranks of value 1 give over this core."""
    monkeypatch.setattr(backend.native, "load", lambda: native.Native(core, "for this test"))
    store = HashStore()

    def run(rank):
        options = ShmOptions(native=True)
        opened = ShmBackend.open(rank=rank, size=3, store=store, device="cpu", timeout=20.0, options=options)
        tensor = torch.ones(50_000, dtype=torch.bfloat16)
        opened.all_reduce(tensor, ReduceOp.SUM).wait()
        opened.close()
        return float(tensor.float().mean())

    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(run, range(3)))


@pytest.mark.unit
@needs_compiler
def test_it_is_compiled_once_however_many_processes_come_at_once(cache, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        build, "compile_core", lambda *args, true=build.compile_core, **kw: compiled.append(1) or true(*args, **kw)
    )
    assert "to be compiled" in native.expected().how
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: native._from_cache(), range(3)))
    assert len(compiled) == 1
    assert all("compiled for this machine" in one.how for one in found)
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".so"]
    assert "compiled for this machine" in native.expected().how
    assert total(found[0].core, monkeypatch) == [3.0] * 3


@pytest.mark.unit
@needs_compiler
def test_a_cache_that_others_may_write_to_is_not_trusted(cache):
    cache.mkdir()
    cache.chmod(0o777)
    found = native._from_cache()
    assert found.core is not None
    assert "for this process alone" in found.how
    assert not list(cache.iterdir())


@pytest.mark.unit
def test_without_a_compiler_there_is_none_and_the_sockets_are_used(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    if NAME not in sys.modules and importlib.util.find_spec(NAME) is None:
        assert native.expected().core is None
        assert ShmBackend.capabilities().mismatch == "none"
    found = native._from_cache()
    assert found.core is None
    assert "no C compiler" in found.how
    monkeypatch.setattr(backend.native, "load", lambda: found)
    opened = ShmBackend.open(rank=0, size=1, store=HashStore(), device="cpu", timeout=5.0)
    assert type(opened).__name__ == "SocketShmBackend"
    opened.close()


@pytest.mark.unit
def test_a_compiler_that_fails_is_quoted(cache, monkeypatch, tmp_path):
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    found = native._from_cache()
    assert found.core is None
    if build.headers() is not None:
        assert found.how == "out of luck"
    assert not [path for path in cache.iterdir() if path.suffix != ".lock"]


@pytest.mark.unit
def test_a_shipped_core_is_taken_first(monkeypatch):
    shipped = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, shipped)
    found = native.load.__wrapped__()
    assert found.core is shipped
    assert found.how == "as shipped in the wheel"


@pytest.mark.slow
@needs_compiler
def test_the_core_for_every_processor_of_a_kind_works_too(tmp_path, monkeypatch):
    path = tmp_path / "_core.abi3.so"
    assert build.compile_core(path, portable=True) == ""
    found = native._open(path, "portable")
    assert found.core is not None
    assert total(found.core, monkeypatch) == [3.0] * 3


@pytest.mark.unit
@pytest.mark.parametrize(("value", "choice", "wanted"), [("1", None, True), ("0", None, False), ("0", True, True)])
def test_the_option_goes_before_the_environment(monkeypatch, value, choice, wanted):
    monkeypatch.setenv(native.SWITCH, value)
    assert native.wanted(choice) is wanted
    monkeypatch.delenv(native.SWITCH)
    assert native.wanted(None) is None
    assert os.environ.get(native.SWITCH) is None


@pytest.mark.unit
def test_the_switch_in_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv(native.SWITCH, "0")
    assert ShmBackend.capabilities().mismatch == "none"
    assert ShmBackend.capabilities().reason.startswith("over sockets: ")
    opened = ShmBackend.open(rank=0, size=1, store=HashStore(), device="cpu", timeout=5.0)
    assert type(opened).__name__ == "SocketShmBackend"
    opened.close()


@pytest.fixture
def hook(monkeypatch, tmp_path):
    """The wheel's build hook, without hatch; `hook.warnings` are what it displayed."""
    interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object
    for depth in range(1, 6):
        name = ".".join(interface.__name__.split(".")[:depth])
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name) if depth < 5 else interface)
    root = os.path.dirname(os.path.dirname(__file__))
    spec = importlib.util.spec_from_file_location("hatch_build", os.path.join(root, "hatch_build.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.CoreBuildHook()
    made.root, made.directory, made.target_name, made.warnings = root, str(tmp_path), "wheel", []
    made.app = types.SimpleNamespace(display_warning=made.warnings.append)
    return made


@pytest.mark.unit
def test_an_editable_install_gets_no_core_and_a_wheel_without_a_compiler_is_pure(hook, monkeypatch):
    data = {"force_include": {}}
    hook.initialize("editable", data)
    assert not hook.warnings
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    hook.initialize("standard", data)
    assert "no C compiler" in hook.warnings[0]
    assert data == {"force_include": {}}


@pytest.mark.unit
def test_a_wheel_with_a_core_has_the_tag_of_its_platform(hook, monkeypatch, tmp_path):
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    data = {"force_include": {}}
    hook.initialize("standard", data)
    assert not hook.warnings
    (made,) = data["force_include"]
    assert data["force_include"][made] == "torchcomms/providers/shm/_core.abi3.so"
    assert data["tag"].startswith("cp311-abi3-linux")
    assert not data["pure_python"]
    hook.finalize("standard", data, "")
    assert not os.path.exists(made)
