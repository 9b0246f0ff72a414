"""The command `executor`: compile, run, inspect, verify and bench program files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from executor import __version__, commands
from executor.errors import ExecutorError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 if it did, 1 with the reason on stderr if it could not, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (ExecutorError, OSError) as error:
        print(f"executor: {error}", file=sys.stderr)
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    top = argparse.ArgumentParser(prog="executor", description="Compile PyTorch models and run them without torch.")
    top.add_argument("--version", action="version", version=f"executor {__version__}")
    subparsers = top.add_subparsers(required=True, metavar="command")

    def command(run: Command, name: str, summary: str) -> argparse.ArgumentParser:
        made = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        made.set_defaults(command=run)
        return made

    compile_model = command(commands.compile_model, "compile", "compile a model into a program file (needs torch)")
    compile_model.add_argument(
        "model",
        metavar="MODULE:FACTORY",
        help="a function that returns (model, args), (model, args, options of executor.compile), or a dict of "
        "(model, args) by method name",
    )
    compile_model.add_argument("-o", "--output", metavar="FILE", required=True, help="the program file to write")
    compile_model.add_argument("--target", default="host", help="what it shall run on (default: this machine)")

    run = command(commands.run, "run", "call a method of a program file")
    _add_file(run)
    _add_method(run)
    run.add_argument(
        "--input",
        dest="inputs",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an input: a .npy file or a number; once for each input",
    )
    run.add_argument("--output", metavar="FILE.npz", help="keep the outputs by name, instead of printing them")

    inspect = command(commands.inspect, "inspect", "show what a program file holds")
    inspect.add_argument("file", metavar="FILE")
    inspect.add_argument("--json", action="store_true", help="the manifest as it is")

    verify = command(commands.verify, "verify", "replay the test vectors that a program file holds")
    _add_file(verify)

    bench = command(commands.bench, "bench", "time a method of a program file")
    _add_file(bench)
    _add_method(bench)
    bench.add_argument("--seconds", type=float, default=1.0, help="how long to call it (default: 1)")
    bench.add_argument("--size", dest="sizes", metavar="SYMBOL=N", action="append", default=[], help="a symbol's value")
    return top


def _add_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE")
    command.add_argument("--interpret", action="store_true", help="interpret its loops; run none of its code")


def _add_method(command: argparse.ArgumentParser) -> None:
    command.add_argument("--method", help="which one (default: forward, or the only one)")
