"""Replays a program file's test vectors in a process where torch cannot be imported, and prints the differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoTorch(MetaPathFinder):
    """Refuses torch: whatever needs it here would need it where the program runs."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.split(".")[0] == "torch":
            raise ImportError("a compiled program runs without torch, and so does its verification")
        return None


def main(path: str) -> None:
    """Print a JSON list of the differences, one for each output of each call."""
    sys.meta_path.insert(0, _NoTorch())
    import numpy as np

    from executor.runtime import load
    from executor.vectors import replay

    found = []
    with load(path) as runtime:
        cases = runtime.cases()
        comparisons = iter(replay(runtime, cases))
        for number, case in enumerate(cases):
            for due in case.outputs:
                entry = next(comparisons)
                finite = np.abs(due[np.isfinite(due)].astype(np.float64))
                largest = float(finite.max(initial=0.0))
                found.append(
                    {
                        "method": entry.method,
                        "call": sum(other.method == case.method for other in cases[:number]) + 1,
                        "output": entry.output,
                        "max_abs_diff": entry.max_abs_diff,
                        "max_rel_diff": entry.max_abs_diff / largest if largest else entry.max_abs_diff,
                        "within": entry.within,
                    }
                )
    print(json.dumps(found))
