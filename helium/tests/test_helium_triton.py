"""The text of emitted Triton, its schedule, and what compiling it for a GPU that is not here tells."""

import ast
import shutil
from pathlib import Path

import pytest
import torch

import helium
import helium.language as hl
from helium import library
from helium.contract import TensorSpec
from helium.emit import triton as emitter
from helium.emit.triton_schedule import power_of_two
from helium.errors import ConfigError, DeviceMismatch, UnsupportedKernel, UnsupportedTarget

X, Y = torch.empty(64, 100), torch.empty(100, 48)
ARGS = {
    "add": (X, X),
    "softmax": (X,),
    "rms_norm": (X, torch.empty(100), 1e-6),
    "log_prob": (X, torch.zeros(64, dtype=torch.int64)),
    "matmul": (X, Y),
    "attention": (torch.empty(4, 9, 16), torch.empty(2, 70, 16), torch.empty(2, 70, 16), 0.25, True),
    "cross_entropy": (X, torch.zeros(64, dtype=torch.int64)),
    "embedding": (torch.zeros(64, dtype=torch.int64), X),
    "geglu": (X, X),
    "kl": (X, X),
    "layer_norm": (X, torch.empty(100), torch.empty(100), 1e-6),
    "rope": (X, torch.empty(64, 50), torch.empty(64, 50)),
    "swiglu": (X, X),
}


def text_of(name: str, *args: object, **config: int) -> str:
    return emitter.source(getattr(library, name), *(args or ARGS[name]), config=helium.Config(**config))


@pytest.mark.unit
@pytest.mark.parametrize("name", ARGS)
def test_source_is_a_module_with_a_function_of_the_kernel_name(name):
    tree = ast.parse(text_of(name))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions[-2:] == [f"_{name}", name]


@pytest.mark.unit
@pytest.mark.parametrize("name", ARGS)
def test_lines_are_not_too_long_to_read(name):
    code = [line for line in text_of(name).splitlines() if not line.lstrip().startswith("#")]
    assert max(map(len, code)) <= 120


@pytest.mark.unit
def test_user_lines_are_comments_above_their_code():
    lines = [line.strip() for line in text_of("matmul").splitlines()]
    comments = [line[2:] for line in lines if line.startswith("# ")]
    source = [line.strip() for line in library.matmul.source.lines]
    assert [line for line in source if line in comments] == comments
    assert any(line.startswith("for tile_m, tile_n in hl.tile") for line in comments)


@pytest.mark.unit
def test_dot_accumulates_in_full_precision():
    text = text_of("matmul")
    assert 'acc = tl.dot(x_tile, y_tile, acc, input_precision="ieee")' in text
    halves = text_of("matmul", X.half(), Y.half())
    assert "acc = tl.dot(x_tile, y_tile, acc)" in halves


@pytest.mark.unit
def test_dead_lanes_are_masked_in_memory_and_in_folds():
    text = text_of("softmax")
    assert "mask=tile_m_live[:, None] & x_live_1[None, :]" in text
    assert 'tl.where(x_live_1[None, :], x_tile, float("-inf"))' in text


@pytest.mark.unit
def test_offsets_are_of_64_bits():
    assert "tile_m_begin = tl.program_id(0).to(tl.int64) * tile_m" in text_of("softmax")


@pytest.mark.unit
def test_programs_wait_before_they_read_what_they_wrote():
    @helium.kernel()
    def increment(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] + 1.0
        return x

    assert emitter.source(increment, torch.empty(7)).count("tl.debug_barrier()") == 2
    assert "tl.debug_barrier()" not in text_of("softmax")


@pytest.mark.unit
def test_only_helpers_that_are_used_come_along():
    assert "def _larger" not in text_of("add")
    assert "def _larger" in text_of("softmax")


@pytest.mark.unit
def test_config_names_block_sizes_and_options():
    text = text_of("matmul", tile_m=32, tile_k=100, num_warps=8, num_stages=2)
    assert "tile_m=32," in text
    assert "tile_k=128," in text, "block sizes are rounded up to powers of two"
    assert "num_warps=8," in text
    assert "num_stages=2," in text


@pytest.mark.unit
def test_config_of_another_kernel_is_refused():
    with pytest.raises(ConfigError, match="tile_z"):
        text_of("matmul", tile_z=4)


@pytest.mark.unit
def test_default_blocks_follow_the_sizes():
    assert "tile_m=1," in text_of("softmax", torch.empty(8, 5000))
    assert "tile_m=8," in text_of("softmax", torch.empty(8, 5))
    assert "=1024," in text_of("add", torch.empty(9, 4000), torch.empty(9, 4000))


@pytest.mark.unit
def test_kernels_show_their_triton():
    assert library.softmax.to_triton(X) == text_of("softmax")
    assert "tile_m=2," in library.softmax.to_triton(X, config=helium.Config(tile_m=2))


@pytest.mark.unit
def test_symbolic_specs_are_enough():
    spec = TensorSpec.contiguous(("m", "n"), "float32")
    assert "=1024," in text_of("add", spec, spec)


@pytest.mark.unit
@pytest.mark.parametrize(("number", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (1000, 1024), (1024, 1024)])
def test_power_of_two(number, power):
    assert power_of_two(number) == power


@pytest.mark.unit
def test_constant_extent_that_is_no_power_of_two_is_refused():
    @helium.kernel()
    def threes(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.sum(hl.zeros([tile, 3]) + x[tile][:, None], dim=1)
        return out

    with pytest.raises(UnsupportedKernel, match="constant extent 3"):
        emitter.source(threes, torch.empty(7))


@pytest.mark.unit
def test_launch_on_the_cpu_without_the_interpreter_says_so():
    launch = pytest.importorskip("helium.emit.triton_launch")
    with pytest.raises(DeviceMismatch, match="TRITON_INTERPRET=1"):
        launch.Launcher(library.add)(X, X)


@pytest.fixture
def compile_for(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from helium.emit.triton_compile import compile_for

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    return compile_for


@pytest.mark.system
@pytest.mark.parametrize("name", ARGS)
def test_library_compiles_for_sm_90_without_spills(compile_for, name):
    (made,) = compile_for(getattr(library, name), *ARGS[name], target="cuda:90")
    assert made.name == f"_{name}"
    assert ".target sm_90" in made.assembly
    assert made.binary[:4] == b"\x7fELF"
    assert made.warps >= 1
    if _cuobjdump():
        assert 0 < made.registers <= 255
        assert made.spills == 0


@pytest.mark.system
@pytest.mark.parametrize(
    ("target", "word"), [("cuda:80", ".target sm_80"), ("cuda:100", ".target sm_100"), ("hip:gfx942", "gfx942")]
)
def test_softmax_compiles_for_other_architectures(compile_for, target, word):
    (made,) = compile_for(library.softmax, *ARGS["softmax"], target=target)
    assert word in made.assembly
    assert made.spills in (0, None)


@pytest.mark.system
def test_half_precision_matmul_uses_the_tensor_cores(compile_for):
    square = TensorSpec.contiguous((512, 512), "float16")
    (made,) = compile_for(library.matmul, square, square, target="cuda:90")
    assert "wgmma" in made.assembly
    assert made.shared > 0


@pytest.mark.unit
@pytest.mark.parametrize("target", ["sm_90", "cuda:hopper", "x86_64-linux", "hip:942"])
def test_unknown_gpu_is_refused_with_those_that_are_known(compile_for, target):
    with pytest.raises(UnsupportedTarget, match="cuda:90"):
        compile_for(library.add, *ARGS["add"], target=target)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA or ROCm device")
@pytest.mark.parametrize("name", ARGS)
def test_library_on_the_gpu_gives_what_the_reference_gives(name):
    generator = torch.Generator().manual_seed(1)
    args = [torch.randn(a.shape, generator=generator) if torch.is_tensor(a) and a.is_floating_point() else a
            for a in ARGS[name]]  # fmt: skip
    kernel = getattr(library, name)
    result = kernel(*(a.cuda() if torch.is_tensor(a) else a for a in args))
    torch.testing.assert_close(result.cpu(), kernel.interpret(*args), rtol=1e-4, atol=1e-4)


def _cuobjdump() -> bool:
    triton = pytest.importorskip("triton")
    return shutil.which("cuobjdump", path=str(Path(triton.__file__).parent / "backends/nvidia/bin")) is not None
