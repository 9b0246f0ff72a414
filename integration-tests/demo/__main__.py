"""The main job: `nox -s demo`, or `python integration-tests/demo` where the five packages are installed.

Takes the real SmolLM2-135M through export and greedy decoding without torch; trains a small policy by GRPO over
monarch processes, with weights over torchcomms and a helium kernel in the model; exports it and runs it without torch.
Writes report.json and report.html.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import page
import plotext
import policy
import smollm2
import torch
from rich.console import Console
from rich.table import Table
from stages import Stages

SHOWN_ROLLOUTS = 12


def main() -> int:
    options = arguments()
    console = Console()
    stages = Stages(console)
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)

    answers = smollm2.run(stages, folder, quick=options.quick)
    kernel = policy.measure_kernel(stages)
    config = policy.configuration(folder, seed=options.seed, quick=options.quick)
    trained = policy.train(stages, config)
    exported = policy.export_and_run(stages, folder, trained)

    report = {
        "seed": options.seed,
        "quick": options.quick,
        "exact_match_before": trained.before.greedy,
        "exact_match_after": trained.after.greedy,
        "export_max_abs_diff": exported.max_abs_diff,
        "export_answers_equal": exported.answers_equal,
        "smollm2_tokens_equal": answers.tokens_equal,
        "smollm2_answers": list(zip(answers.questions, answers.texts, strict=True)),
        "smollm2_tokens_per_second": answers.tokens_per_second,
        "torch_importable": answers.torch_importable or exported.torch_importable,
        "kernel": asdict(kernel),
        "comm_backend": trained.sync,
        "launcher": config.launcher,
        "processes": policy.processes(trained),
        "parity": trained.parity,
        "stages": stages.seconds,
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    write_page(folder / "report.html", report, trained, exported, answers)
    show(console, report, trained, folder)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s demo --", description=__doc__.split("\n\n")[1])
    parser.add_argument("--quick", action="store_true", help="every stage in small: under ninety seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the policy, its warm-up and its training (default 0)")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder to write to (default demo-out)")
    return parser.parse_args()


def write_page(path: Path, report: dict, trained, exported, answers) -> None:
    before, after = trained.before.rollouts, trained.after.rollouts
    rollouts = [
        {"prompt": b.prompt, "answer": "".join(sorted(b.prompt[:-1])), "before": b.text, "after": a.text}
        for b, a in zip(before[:SHOWN_ROLLOUTS], after, strict=False)
    ]
    kernel = report["kernel"]
    parts = [
        ("torchcomms", f"moved the weights after every step, backend {report['comm_backend']}"),
        (
            "helium",
            f"{kernel['name']} compiled for {kernel['target']}: {kernel['milliseconds']:.2f} ms for 4096 × 1024, "
            f"{100 * kernel['roofline_share']:.0f} % of this machine's roofline",
        ),
        ("monarch", f"{report['processes']} processes by the {report['launcher']} launcher"),
        (
            "executor",
            f"policy.edge, {exported.program_bytes / 1e6:.1f} MB, and smollm2.edge, "
            f"{answers.program_bytes / 1e6:.0f} MB ({answers.tokens_per_second:.0f} tokens/s), "
            "each run in a process where torch cannot be imported",
        ),
        ("forge", f"GRPO; trainer and generator differ by {report['parity']:.1e} in log-probability"),
    ]
    page.write(
        path,
        report=report,
        held_out=len(after),
        steps=len(trained.history),
        reward_curve=page.curve_of(trained.history, "reward/mean"),
        solved_curve=page.curve_of(trained.history, "solved"),
        parts=parts,
        longest=max(report["stages"].values()),
        answers=report["smollm2_answers"],
        rollouts=rollouts,
    )


def show(console: Console, report: dict, trained, folder: Path) -> None:
    table = Table("stage", "seconds", title="What each stage took", title_justify="left")
    for name, seconds in report["stages"].items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_section()
    table.add_row("all", f"{sum(report['stages'].values()):.1f}")
    console.print(table)
    plotext.plot([metrics["reward/mean"] for metrics in trained.history], label="reward/mean")
    plotext.title("Reward over GRPO steps")
    plotext.plotsize(78, 16)
    plotext.theme("clear")
    print(plotext.uncolorize(plotext.build()))
    for question, text in report["smollm2_answers"]:
        console.print(f"[bold]{question}[/bold] {text}", highlight=False)
    console.print(
        f"exact match on {len(trained.after.rollouts)} held-out prompts: "
        f"{report['exact_match_before']:.3f} → [bold]{report['exact_match_after']:.3f}[/bold]; "
        f"exported program within {report['export_max_abs_diff']:.1e}; "
        f"SmolLM2 tokens equal: {report['smollm2_tokens_equal']}"
    )
    console.print(f"page: {folder / 'report.html'}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
