"""Greedy decoding with an exported program, run as a process of its own in which torch cannot be imported.

    python torchfree.py job.json result.json

The job names the program, the prompts (lists of token ids), the stop ids and the number of tokens; the result holds
the tokens of each prompt, the seconds taken, and whether torch could be imported (it must not).
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path


def run_without_torch(
    program: Path, prompts: list[list[int]], stop: list[int], max_tokens: int, logits: Path | None = None
) -> dict:
    """Run this file on a job, from a process that may have torch; returns the result."""
    job, result = program.with_suffix(".job.json"), program.with_suffix(".result.json")
    job.write_text(
        json.dumps(
            {
                "program": str(program),
                "prompts": prompts,
                "stop": stop,
                "max_tokens": max_tokens,
                "logits": str(logits) if logits else None,
            }
        )
    )
    subprocess.run([sys.executable, __file__, str(job), str(result)], check=True, timeout=300)
    return json.loads(result.read_text())


class Blocker(MetaPathFinder):
    """Refuses torch, so that a program that secretly needed it would fail here."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] == "torch":
            raise ImportError("torch is blocked in this process")


def can_import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def decode(runtime, prompt: Sequence[int], stop: Sequence[int], max_tokens: int):
    """Greedy tokens after `prompt`, the stop id included, and the logits each was chosen from."""
    import numpy

    runtime.state.reset()
    tokens: list[int] = []
    rows = []
    for position in range(len(prompt) + max_tokens - 1):
        token = prompt[position] if position < len(prompt) else tokens[-1]
        logits = runtime(numpy.array([[token]], numpy.int64), numpy.array(position, numpy.int64))
        if position < len(prompt) - 1:
            continue
        rows.append(logits[0].copy())
        tokens.append(int(logits[0].argmax()))
        if tokens[-1] in stop:
            break
    return tokens, rows


def main(job_path: str, result_path: str) -> None:
    sys.meta_path.insert(0, Blocker())
    import numpy

    import executor

    job = json.loads(Path(job_path).read_text())
    runtime = executor.load(job["program"])
    start = time.perf_counter()
    answers = [decode(runtime, prompt, job["stop"], job["max_tokens"]) for prompt in job["prompts"]]
    seconds = time.perf_counter() - start
    if job["logits"]:
        numpy.save(job["logits"], numpy.concatenate([numpy.stack(rows) for _, rows in answers]))
    result = {
        "tokens": [tokens for tokens, _ in answers],
        "seconds": seconds,
        "steps": sum(len(p) + len(t) - 1 for p, (t, _) in zip(job["prompts"], answers, strict=True)),
        "torch_importable": can_import("torch"),
    }
    Path(result_path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
