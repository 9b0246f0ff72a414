"""The report of a run: one self-contained page with its curves as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from forge.run_directory import read_metrics, read_rollouts

__all__ = ["curve", "write_report"]

CURVES = ("reward/mean", "solved", "eval/greedy", "entropy", "mismatch_kl", "grad_norm", "completion_tokens/mean")
WIDTH, HEIGHT, MARGIN = 520, 180, 46
SHOWN = 8

_PAGE = """<!doctype html><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}}
figure{{display:inline-block;margin:0 1rem 1rem 0}}figcaption{{font-weight:600}}pre{{background:#f5f5f5;padding:1rem;
overflow:auto}}table{{border-collapse:collapse}}
td,th{{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #ddd}}
</style><h1>{title}</h1>{curves}{rollouts}<h2>Configuration</h2><pre>{config}</pre>
"""


def write_report(run: Path) -> Path:
    """Write `report.html` into a run directory, from its files alone; returns its path."""
    metrics = read_metrics(run)
    figures = []
    for name in CURVES:
        points = [(line["step"], line[name]) for line in metrics if line.get(name) is not None]
        if len(points) > 1:
            figures.append(f"<figure><figcaption>{html.escape(name)}</figcaption>{curve(points)}</figure>")
    config = html.escape((run / "config.toml").read_text())
    page = _PAGE.format(title=html.escape(run.name), curves="".join(figures), rollouts=_rollouts(run), config=config)
    path = run / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _rollouts(run: Path) -> str:
    """A table of the last step's first samples; nothing where there was no step."""
    if not any((run / "rollouts").iterdir()):
        return ""
    step, rollouts = read_rollouts(run)
    rows = "".join(
        f"<tr><td>{html.escape(sample['prompt'])}<td>{html.escape(sample['text'])}<td>{sample['reward']}</tr>"
        for sample in rollouts[:SHOWN]
    )
    return f"<h2>Rollouts of step {step}</h2><table><tr><th>prompt<th>completion<th>reward</tr>{rows}</table>"


def curve(points: Sequence[tuple[float, float]]) -> str:
    """An SVG line through `points` (x, y), its axes labelled with their ends."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    across, up = (right - left) or 1.0, (high - low) or 1.0

    def place(x: float, y: float) -> str:
        px = MARGIN + (x - left) / across * (WIDTH - 2 * MARGIN)
        py = HEIGHT - 24 - (y - low) / up * (HEIGHT - 40)
        return f"{px:.1f},{py:.1f}"

    line = " ".join(place(x, y) for x, y in points)
    labels = (
        (4, HEIGHT - 24, f"{low:.3g}"),
        (4, 20, f"{high:.3g}"),
        (MARGIN, HEIGHT - 6, f"{left:g}"),
        (WIDTH - MARGIN - 20, HEIGHT - 6, f"{right:g}"),
    )
    text = "".join(f'<text x="{x}" y="{y}" font-size="11" fill="#666">{value}</text>' for x, y, value in labels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<path d="M{MARGIN},16V{HEIGHT - 24}H{WIDTH - MARGIN}" fill="none" stroke="#bbb"/>'
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="1.5"/>{text}</svg>'
    )
