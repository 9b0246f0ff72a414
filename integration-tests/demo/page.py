"""The page to look at in the end: `report.html`, one file with the curve, the stages, and rollouts before and after."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
from matplotlib.figure import Figure

TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>pentad: the main job</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
 h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
 table { border-collapse: collapse; } td, th { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; }
 td.n { text-align: right; font-variant-numeric: tabular-nums; } tr + tr td { border-top: 1px solid #e4e7eb; }
 code { background: #f3f4f6; padding: 0 .2rem; } .bar { background: #4c78a8; height: .7rem; }
 svg { max-width: 100%; height: auto; } .right { color: #176f2c; } .wrong { color: #b42318; }
</style>
<h1>A policy trained, exported, and run without torch</h1>
<p>Greedy exact match on {{ held_out }} held-out prompts of the six-digit sort task rose from
<b>{{ "%.1f" | format(100 * report.exact_match_before) }} %</b> to
<b>{{ "%.1f" | format(100 * report.exact_match_after) }} %</b> in {{ steps }} GRPO steps (seed {{ report.seed }}), on
{{ report.processes }} processes. The exported program's logits differ from the policy's by at most
{{ "%.1e" | format(report.export_max_abs_diff) }}, its answers on the held-out prompts
{{ "are the same" if report.export_answers_equal else "DIFFER" }}.</p>
<h2>Reward and exact match</h2>
{{ curve }}
<h2>Who did what</h2>
<table>
{% for package, what in parts %}<tr><td><b>{{ package }}</b><td>{{ what }}{% endfor %}
</table>
<h2>Stages</h2>
<table>
{% for name, seconds in report.stages.items() %}<tr><td>{{ name }}<td class="n">{{ "%.1f" | format(seconds) }} s
<td><div class="bar" style="width: {{ "%.2f" | format(14 * seconds / longest) }}rem"></div>{% endfor %}
</table>
<h2>The real model, without torch</h2>
<p>SmolLM2-135M-Instruct, greedy; its tokens {{ "equal" if report.smollm2_tokens_equal else "DIFFER FROM" }}
those of <code>transformers</code>.</p>
<table>
{% for question, text in answers %}<tr><td><i>{{ question }}</i><td>{{ text }}{% endfor %}
</table>
<h2>Sample rollouts</h2>
<table>
<tr><th>prompt<th>answer due<th>before<th>after
{% for row in rollouts %}<tr><td><code>{{ row.prompt }}</code><td><code>{{ row.answer }}</code>
<td><code class="{{ "right" if row.before == row.answer else "wrong" }}">{{ row.before }}</code>
<td><code class="{{ "right" if row.after == row.answer else "wrong" }}">{{ row.after }}</code>{% endfor %}
</table>
</html>
"""


def curve_svg(rewards: Sequence[float], exact: Sequence[float]) -> str:
    """Both curves over the training steps, thin as they are and thick as running means."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    for values, name, colour in ((rewards, "reward/mean", "#4c78a8"), (exact, "exact match of samples", "#e45756")):
        axes.plot(values, color=colour, alpha=0.25, linewidth=1)
        axes.plot(running_mean(values), color=colour, label=name, linewidth=2)
    axes.set(xlabel="GRPO step", ylim=(0, 1))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def running_mean(values: Sequence[float], window: int = 15) -> list[float]:
    """The mean over up to `window` values that end at each step."""
    windows = (values[max(0, i + 1 - window) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in windows]


def write(path: Path, **facts: object) -> None:
    """Render the page; `facts` are the names the template reads."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    path.write_text(environment.from_string(TEMPLATE).render(**facts), encoding="utf-8")
