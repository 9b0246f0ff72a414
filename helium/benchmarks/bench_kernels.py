"""Times the library against torch, eager and with --compile compiled, and says what share of the roofline is reached.

Run it on an idle machine: ``python benchmarks/bench_kernels.py``. It writes bench_kernels.json and its part of
RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import helium
from helium import library
from helium.roofline import roofline, work

HERE = Path(__file__).parent
SECONDS = 0.6
"""Time given to each measurement."""


def cases() -> list[tuple[str, helium.Kernel, tuple[Any, ...], Callable[..., Any]]]:
    """(name, kernel, arguments, the same in torch)."""
    x, weight = torch.randn(4096, 1024), torch.randn(1024)
    logits, ids = torch.randn(2048, 32000), torch.randint(0, 32000, (2048,))
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    large = torch.randn(4096, 4096)

    def log_prob(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0]

    def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (1024,), weight, eps)

    heads = tuple(torch.randn(8, 1024, 64) for _ in range(3))

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)

    def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (1024,), weight, bias, eps)

    def cross_entropy(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, ids, reduction="none")

    def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(gate) * up

    return [
        ("softmax 4096×1024", library.softmax, (x,), lambda x: torch.softmax(x, -1)),
        ("rms norm 4096×1024", library.rms_norm, (x, weight, 1e-6), rms_norm),
        ("layer norm 4096×1024", library.layer_norm, (x, weight, weight, 1e-6), layer_norm),
        ("cross entropy 2048×32000", library.cross_entropy, (logits, ids), cross_entropy),
        ("swiglu 4096×4096", library.swiglu, (large, large), swiglu),
        ("log_prob 2048×32000", library.log_prob, (logits, ids), log_prob),
        ("attention H8 S1024 D64", library.attention, (*heads, 0.125, False), attention),
        ("matmul f32 1024", library.matmul, (a, b), torch.mm),
        ("add 4096×4096", library.add, (large, large), torch.add),
        ("add 4×4 (call)", library.add, (x[:4, :4].contiguous(), x[:4, :4].contiguous()), torch.add),
    ]


def sample(call: Callable[[], object]) -> list[float]:
    """Milliseconds of each of several calls."""
    call()
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < SECONDS or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def summary(times: list[float]) -> dict[str, float]:
    """Count, best, median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4)
    return {"n": len(times), "best": min(times), "median": middle, "low": low, "high": high}


def row(
    name: str, kernel: helium.Kernel, args: tuple[Any, ...], peer: Callable[..., Any], compiled: bool
) -> dict[str, Any]:
    """One case at torch's present number of threads."""
    torch.testing.assert_close(kernel(*args), peer(*args), rtol=1e-3, atol=1e-3)
    need = work(kernel.lower(*args), kernel.bind(*args))
    limit = roofline().seconds(need.bytes, need.flops) * 1e3
    result: dict[str, Any] = {
        "case": name, "threads": torch.get_num_threads(), "limit": limit,
        "ours": summary(sample(lambda: kernel(*args))), "eager": summary(sample(lambda: peer(*args))), "compile": None,
    }  # fmt: skip
    if compiled:
        faster = torch.compile(peer)
        result["compile"] = summary(sample(lambda: faster(*args)))
    return result


def table(rows: list[dict[str, Any]], environment: dict[str, str]) -> str:
    """The rows as Markdown."""
    lines = [
        f"## Kernels on the CPU ({'; '.join(f'{k} {v}' for k, v in environment.items())})", "",
        "Milliseconds, median of all calls in 0.6 s (best in brackets); outputs are fresh. The limit is the measured",
        "roofline; the ratio is eager over ours, the share the limit over our best.", "",
        "| case | threads | ours | eager | torch.compile | ratio | limit | share |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for r in rows:
        ours, eager, compiled = r["ours"], r["eager"], r["compile"]
        cells = [f"{t['median']:.4g} ({t['best']:.4g})" if t else "not run" for t in (ours, eager, compiled)]
        ratio, share = eager["median"] / ours["median"], r["limit"] / ours["best"]
        cells += [f"{ratio:.2f}", f"{r['limit']:.3g}", f"{share:.0%}"]
        lines.append(f"| {r['case']} | {r['threads']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write(text: str) -> None:
    """This benchmark's part of RESULTS.md, in place of the last one."""
    results, begin, end = HERE / "RESULTS.md", "<!-- bench_kernels -->", "<!-- end of bench_kernels -->"
    old = results.read_text() if results.exists() else "# Results\n"
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2].lstrip("\n")
    results.write_text(f"{before.rstrip()}\n\n{begin}\n{text}\n{end}\n" + (f"\n{after}" if after else ""))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="also time torch.compile")
    compiled = parser.parse_args().compile
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, kernel, args, peer in cases():
            rows.append(row(name, kernel, args, peer, compiled))
            print(json.dumps(rows[-1]), flush=True)
    environment = {
        "load average": f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        "machine": f"{platform.machine()}, {helium.host_target()}", "python": platform.python_version(),
        "torch": torch.__version__, "helium": helium.__version__,
        "command": " ".join(["python benchmarks/bench_kernels.py", *sys.argv[1:]]),
    }  # fmt: skip
    (HERE / "bench_kernels.json").write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")
    text = table(rows, environment)
    write(text)
    print(text)


if __name__ == "__main__":
    main()
