"""The page to look at in the end: `report.html`, one file with the curve, the stages, and rollouts before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from forge.report import curve

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
<h2>The reward, step by step</h2>
<figure>{{ reward_curve }}<figcaption>reward/mean, running mean of 15 steps</figcaption></figure>
<figure>{{ solved_curve }}<figcaption>share of sampled completions that are exactly right</figcaption></figure>
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


def curve_of(history: Sequence[Mapping[str, float]], name: str) -> Markup:
    """The running mean of a metric over the training steps, as SVG."""
    steps = [metrics["step"] for metrics in history]
    return Markup(curve(list(zip(steps, running_mean([metrics[name] for metrics in history]), strict=True))))


def running_mean(values: Sequence[float], window: int = 15) -> list[float]:
    """The mean over up to `window` values that end at each step."""
    windows = (values[max(0, i + 1 - window) : i + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in windows]


def write(path: Path, **facts: object) -> None:
    """Render the page; `facts` are the names the template reads."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    path.write_text(environment.from_string(TEMPLATE).render(**facts), encoding="utf-8")
