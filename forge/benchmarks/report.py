"""Writes a measurement's JSON beside RESULTS.md and regenerates that file from all of them."""

from __future__ import annotations

import json
import platform
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def spread(values: list[float]) -> str:
    """Median and range of what was measured."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}–{max(values):.3g}, n={len(values)})"


def record(name: str, title: str, rows: list[dict[str, str]], **facts: Any) -> None:
    """Print and keep one table; `rows` share their keys, `facts` are kept beside them."""
    versions = {package: _version(package) for package in ("torch", "trl", "transformers")}
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    data = {
        "title": title,
        "command": " ".join(sys.argv),
        "machine": machine,
        "versions": versions,
        "rows": rows,
        **facts,
    }
    (HERE / f"{name}.json").write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    print(_table(data))
    write_results()


def write_results() -> None:
    """RESULTS.md from every JSON file here that `record` wrote."""
    tables = [_table(data) for file in sorted(HERE.glob("*.json")) if "rows" in (data := json.loads(file.read_text()))]
    text = "# Measured\n\nWritten by the scripts beside this file; run one to measure again.\n\n"
    (HERE / "RESULTS.md").write_text(text + "\n".join(tables))


def _table(data: dict[str, Any]) -> str:
    columns = list(data["rows"][0])
    lines = [f"## {data['title']}", "", f"| {' | '.join(columns)} |", f"| {' | '.join('---' for _ in columns)} |"]
    lines += [f"| {' | '.join(row[column] for column in columns)} |" for row in data["rows"]]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return "\n".join([*lines, "", f"{data['machine']}; {versions}; `{data['command']}`", ""])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "absent"
