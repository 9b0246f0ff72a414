"""How long a kernel takes to become GPU code on a machine without a GPU, and what the code takes of the GPU.

The peer is Triton written by hand, below, compiled by the same Triton for the same target. Both are compiled from
nothing: ours from the user's function, through the IR and the emitted text.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ["TRITON_ALWAYS_COMPILE"] = "1"

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helium import library
from helium.emit import triton as emitter
from helium.emit.triton_compile import Compiled, compile_for

HERE = Path(__file__).parent
REPEATS, LIMIT, TARGET = 3, 2.0, "cuda:90"


@triton.jit
def add(x_ptr, y_ptr, out_ptr, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < size
    tl.store(out_ptr + index, tl.load(x_ptr + index, mask=live) + tl.load(y_ptr + index, mask=live), mask=live)


@triton.jit
def softmax(x_ptr, out_ptr, stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    live = index < size
    x = tl.load(x_ptr + row * stride + index, mask=live, other=float("-inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * stride + index, e / tl.sum(e, axis=0), mask=live)


@triton.jit
def rms_norm(x_ptr, weight_ptr, out_ptr, stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    index = tl.arange(0, BLOCK)
    live = index < size
    x = tl.load(x_ptr + row * stride + index, mask=live, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / size + eps)
    tl.store(out_ptr + row * stride + index, x * scale * tl.load(weight_ptr + index, mask=live), mask=live)


@triton.jit
def matmul(x_ptr, y_ptr, out_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    programs_n = tl.cdiv(n, N)
    rows = tl.program_id(0) // programs_n * M + tl.arange(0, M)
    columns = tl.program_id(0) % programs_n * N + tl.arange(0, N)
    acc = tl.zeros((M, N), dtype=tl.float32)
    for begin in range(0, k, K):
        inner = begin + tl.arange(0, K)
        x = tl.load(
            x_ptr + rows[:, None] * k + inner[None, :], mask=(rows < m)[:, None] & (inner < k)[None, :], other=0
        )
        y = tl.load(
            y_ptr + inner[:, None] * n + columns[None, :], mask=(inner < k)[:, None] & (columns < n)[None, :], other=0
        )
        acc = tl.dot(x, y, acc)
    place = out_ptr + rows[:, None] * n + columns[None, :]
    tl.store(place, acc.to(tl.float16), mask=(rows < m)[:, None] & (columns < n)[None, :])


def _floats(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32)


HALF = torch.empty(1024, 1024, dtype=torch.float16)
OURS = {
    "add": (_floats(4096, 1024), _floats(4096, 1024)),
    "softmax": (_floats(4096, 1024),),
    "rms_norm": (_floats(4096, 1024), _floats(1024), 1e-6),
    "log_prob": (_floats(2048, 32000), torch.zeros(2048, dtype=torch.int64)),
    "matmul": (HALF, HALF),
}
F, H, INT = "*fp32", "*fp16", "i32"
BY_HAND: dict[str, tuple[Any, list[str], dict[str, int], int]] = {
    "add": (add, [F, F, F, INT], {"BLOCK": 1024}, 4),
    "softmax": (softmax, [F, F, INT, INT], {"BLOCK": 1024}, 4),
    "rms_norm": (rms_norm, [F, F, F, INT, INT, "fp32"], {"BLOCK": 1024}, 4),
    "matmul": (matmul, [H, H, H, INT, INT, INT], {"M": 128, "N": 128, "K": 64}, 8),
}


def by_hand(name: str) -> None:
    """Compile the peer for the target."""
    function, types, constants, warps = BY_HAND[name]
    names = function.arg_names
    signature = dict(zip(names, [*types, *["constexpr"] * len(constants)], strict=True))
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types) if kind != "fp32"}
    source = ASTSource(function, signature, constants, aligned)
    triton.compile(source, target=GPUTarget("cuda", int(TARGET.partition(":")[2]), 32), options={"num_warps": warps})


def ours(name: str) -> Compiled:
    """Compile a fresh copy of the library's kernel for the target."""
    kernel = getattr(library, name)
    kernel._kernels.clear()
    return compile_for(kernel, *OURS[name], target=TARGET)[0]


def timed(work: Callable[[], object]) -> list[float]:
    """Milliseconds of each of a few runs, after one that is not counted."""
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"n": len(times), "median": middle, "lower_quartile": low, "upper_quartile": high}


def lines_of(text: str) -> int:
    """Lines that are neither blank nor comments."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def measured(name: str) -> dict[str, Any]:
    """Everything about one kernel."""
    kernel, made = getattr(library, name), ours(name)
    peer = summary(timed(lambda: by_hand(name))) if name in BY_HAND else None
    own = summary(timed(lambda: ours(name)))
    return {
        "kernel": name,
        "ours_ms": own,
        "by_hand_ms": peer,
        "ratio": own["median"] / peer["median"] if peer else None,
        "lines": lines_of("\n".join(kernel.source.lines)),
        "triton_lines": lines_of(emitter.source(kernel, *OURS[name])),
        "registers": made.registers,
        "spilled_bytes": made.spills,
        "shared_bytes": made.shared,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = "| kernel | lines | emitted lines | compile ms | by hand ms | ratio | limit | registers | spilled | shared |"
    lines = [head, "| --- " + "| ---: " * 9 + "|"]
    for row in rows:
        peer, ratio = row["by_hand_ms"], row["ratio"]
        cells = [row["kernel"], row["lines"], row["triton_lines"], f"{row['ours_ms']['median']:.0f}"]
        cells += [
            f"{peer['median']:.0f}" if peer else "absent",
            f"{ratio:.2f}" if ratio else "",
            LIMIT if ratio else "",
        ]
        cells += ["" if row[key] is None else row[key] for key in ("registers", "spilled_bytes", "shared_bytes")]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def helion() -> str:
    """The version of Helion, which has no way to compile for a GPU that is not there."""
    try:
        return version("helion")
    except PackageNotFoundError:
        return "absent"


def write(record: dict[str, Any], text: str) -> None:
    """The JSON, and this benchmark's part of RESULTS.md."""
    (HERE / "bench_triton_compile.json").write_text(json.dumps(record, indent=1) + "\n")
    results = HERE / "RESULTS.md"
    begin, end = "<!-- bench_triton_compile -->", "<!-- end of bench_triton_compile -->"
    old = results.read_text() if results.exists() else "# Results\n"
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2].lstrip("\n")
    title = f"## GPU code without a GPU ({TARGET}, from `{record['command']}`)"
    results.write_text(f"{before.rstrip()}\n\n{begin}\n{title}\n\n{text}\n{end}\n" + (f"\n{after}" if after else ""))


def main() -> None:
    torch.set_num_threads(1)
    rows = [measured(name) for name in OURS]
    record = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "command": f"python benchmarks/{Path(sys.argv[0]).name}",
        "versions": {"torch": torch.__version__, "triton": triton.__version__, "helion": helion()},
        "target": TARGET,
        "limit": LIMIT,
        "rows": rows,
    }
    text = table(rows)
    write(record, text)
    print(text)


if __name__ == "__main__":
    main()
