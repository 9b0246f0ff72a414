"""Times compiled programs on one thread beside torch eager and ONNX Runtime, and the runtime's import.

Run it on an idle machine: `python benchmarks/bench_latency.py`. Contenders take turns, so that noise falls on all of
them. It writes bench_latency.json and RESULTS.md. Peers that are not installed are listed as absent.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from models import SMOLLM2_135M, Config, Mlp, decoder
from torch import Tensor, nn

import executor
from executor import targets

HERE = Path(__file__).parent
ROUNDS = 10
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of one contender on one model; `times` is empty if it is absent, and `note` says why."""

    model: str
    contender: str
    n: int = 0
    median: float | None = None
    quartiles: tuple[float, float] | None = None
    best: float | None = None
    limit: float | None = None
    note: str = ""


def ours(model: nn.Module, args: tuple[Tensor, ...], folder: Path) -> Call:
    """The compiled program, proved equal first."""
    program = executor.compile(model, args)
    verification = program.verify()
    if not verification:
        raise SystemExit(str(verification))
    program.save(folder / "program.edge")
    runtime = executor.load(folder / "program.edge", threads=1)
    inputs = [tensor.numpy() for tensor in args]
    return lambda: runtime(*inputs)


def eager(model: nn.Module, args: tuple[Tensor, ...], folder: Path) -> Call:
    """torch as it is."""

    def call() -> object:
        with torch.no_grad():
            return model(*args)

    return call


class Functional(nn.Module):
    """A module whose written buffers are arguments and results: a graph format without state needs that."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = [name for name, _ in model.named_buffers() if name.split(".")[-1] in ("keys", "values")]

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The results, then the buffers' new values."""
        count = len(args) - len(self.names)
        buffers = {name: value.clone() for name, value in zip(self.names, args[count:], strict=True)}
        return (torch.func.functional_call(self.model, buffers, args[:count]), *buffers.values())


def onnxruntime(model: nn.Module, args: tuple[Tensor, ...], folder: Path) -> Call:
    """ONNX Runtime with one thread; the decoder's cache goes in and out of each call."""
    import onnxruntime as ort

    functional = Functional(model)
    held = dict(model.named_buffers())
    given = (*args, *(held[name].clone() for name in functional.names))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            functional.eval(), given, folder / "model.onnx", dynamo=True, external_data=False, verbose=False
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
    feed = {entry.name: tensor.numpy() for entry, tensor in zip(session.get_inputs(), given, strict=True)}
    return lambda: session.run(None, feed)


CONTENDERS: dict[str, tuple[Callable[..., Call], tuple[str, ...]]] = {
    "executor": (ours, ()),
    "torch eager": (eager, ()),
    "onnxruntime": (onnxruntime, ("onnxruntime", "onnx", "onnxscript")),
}
TARGETS = {"mlp": 0.030, "decoder 8×512": 8.0}


def measure(name: str, model: nn.Module, args: tuple[Tensor, ...], seconds: float, weights: int) -> list[Result]:
    """Every contender on one model, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Call] = {}
        found: list[Result] = []
        for contender, (make, needed) in CONTENDERS.items():
            lacking = [package for package in needed if importlib.util.find_spec(package) is None]
            if lacking:
                found.append(Result(name, contender, note=f"absent: {', '.join(lacking)} not installed"))
                continue
            calls[contender] = make(model, args, Path(folder))
            calls[contender]()
        samples: dict[str, list[float]] = {contender: [] for contender in calls}
        for _ in range(ROUNDS):
            for contender, call in calls.items():
                samples[contender] += run(call, seconds / ROUNDS)
        limit = weights / bandwidth(weights) * 1e3
        return [summary(name, contender, times, limit) for contender, times in samples.items()] + found


def run(call: Call, seconds: float) -> list[float]:
    """Milliseconds of each call."""
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def summary(model: str, contender: str, times: list[float], limit: float) -> Result:
    """Median and quartiles; `limit` is the time to read the weights once."""
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else (times[0],) * 3
    return Result(model, contender, len(times), middle, (low, high), min(times), limit)


def bandwidth(nbytes: int) -> float:
    """Bytes a second at which torch sums a tensor of that size on one thread, the best of some."""
    tensor = torch.ones(nbytes // 4)
    return nbytes / min(run(tensor.sum, 0.3)) * 1e3


def import_cost() -> dict[str, float]:
    """Milliseconds to import the runtime and kilobytes of its files, without the compiler's."""
    code = "import time; t = time.perf_counter(); import executor; print((time.perf_counter() - t) * 1e3)"
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment).stdout)
        for _ in range(7)
    ]
    root = Path(executor.__file__).parent
    sizes = [p.stat().st_size for p in root.rglob("*.py") if "compiler" not in p.relative_to(root).parts]
    return {"import_ms": statistics.median(times), "runtime_kilobytes": sum(sizes) / 1e3}


def table(results: list[Result], costs: dict[str, float], machine: str) -> str:
    """RESULTS.md."""
    lines = [
        "# Measured",
        "",
        f"`python benchmarks/bench_latency.py`, one thread, batch 1, float32. {machine}",
        "The limit is the time that torch takes to read as many bytes as the model has weights, on one thread, in the",
        "same run: no decode step is faster than that. Targets are for an idle machine of the design's class.",
        "",
        "| model | contender | median ms | quartiles | best | × ours | limit ms | target ms |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    medians = {result.model: result.median for result in results if result.contender == "executor"}
    for result in results:
        if result.median is None or result.quartiles is None or result.limit is None:
            lines.append(f"| {result.model} | {result.contender} | {result.note} | | | | | |")
            continue
        low, high = result.quartiles
        ratio = result.median / (medians[result.model] or 1.0)
        goal = TARGETS.get(result.model, "") if result.contender == "executor" else ""
        lines.append(
            f"| {result.model} | {result.contender} | {result.median:.3f} | {low:.3f}–{high:.3f} | {result.best:.3f} "
            f"| {ratio:.2f} | {result.limit:.3f} | {goal} |"
        )
    lines += [
        "",
        f"Importing the runtime takes {costs['import_ms']:.0f} ms (numpy comes with the first call only); its files,",
        f"without the compiler's, are {costs['runtime_kilobytes']:.0f} kB.",
        "",
    ]
    return "\n".join(lines)


def described_machine() -> str:
    """The machine and the versions."""
    names = ("torch", "onnxruntime", "numpy")
    found = {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)}
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    load = os.getloadavg()[0]
    return f"{targets.host()}, Python {platform.python_version()}, {versions}, load average {load:.1f}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each contender and model")
    parser.add_argument("--large", action="store_true", help="also a decoder of SmolLM2-135M's size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    models: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
        "mlp": (Mlp().eval(), (torch.randn(1, 784),)),
        "decoder 8×512": decoder(Config()),
    }
    if options.large:
        models["decoder 30×576 (SmolLM2-135M)"] = decoder(SMOLLM2_135M)
    results: list[Result] = []
    for name, (model, args) in models.items():
        read = sum(p.numel() for n, p in model.named_parameters() if "embedding" not in n or "decoder 30" in name) * 4
        results += measure(name, model, args, options.seconds, read)
    costs, machine = import_cost(), described_machine()
    record = {"machine": machine, "results": [asdict(result) for result in results], **costs}
    (HERE / "bench_latency.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    (HERE / "RESULTS.md").write_text(table(results, costs, machine))
    print(table(results, costs, machine))


if __name__ == "__main__":
    main()
