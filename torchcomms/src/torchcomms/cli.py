"""The command `torchcomms`: `run` starts ranks, `bench` and `tune` measure, `doctor` says what works here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(help="The Python script that every rank runs; with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks to start here.")] = 1,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in python -m.")] = False,
    nnodes: Annotated[int, typer.Option(min=1, help="How many machines take part; run this on each.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of them this is; 0 hosts the store.")] = 0,
    rendezvous: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where node 0 is reached.")] = "",
    wait: Annotated[float, typer.Option(help="Seconds for all machines to come.")] = 300.0,
    env: Annotated[list[str] | None, typer.Option("-e", "--env", metavar="NAME=VALUE", help="Set for ranks.")] = None,
    no_prefix: Annotated[bool, typer.Option("--no-prefix", help="Pass output on without [rank] before it.")] = False,
    grace: Annotated[float, typer.Option(help="Seconds between asking ranks to stop and killing them.")] = 5.0,
) -> None:
    """Start SCRIPT on N ranks; if one fails, end the rest and say who failed and why.

    Ranks inherit the environment; RANK, WORLD_SIZE, MASTER_ADDR and the other words of torchrun are set. What a rank
    starts ends with it. For two machines: `--nnodes 2 --rendezvous node0:29400 --node-rank 0` on the first, 1 on the
    second.
    """
    from torchcomms.errors import CommsTimeout, InvalidCall
    from torchcomms.launcher import Job, launch
    from torchcomms.launcher.output import printer

    if not module and not Path(script).is_file():
        raise typer.BadParameter(f"there is no file {script!r}; a module is started with -m", param_hint="SCRIPT")
    try:
        job = Job(
            (sys.executable, "-u", *(["-m"] if module else []), script, *(arguments or [])),
            ranks,
            nodes=nnodes,
            node=node_rank,
            rendezvous=rendezvous,
            environment=dict(_assignment(one) for one in env or []),
            grace=grace,
            patience=wait,
        )
        code = launch(job, printer(prefix=not no_prefix))
    except InvalidCall as error:
        raise typer.BadParameter(str(error)) from None
    except CommsTimeout as error:
        typer.echo(f"torchcomms: {error}", err=True)
        code = 1
    raise typer.Exit(code)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


@app.command()
def bench(
    operation: Annotated[str, typer.Argument(help="all_reduce, broadcast, all_gather, reduce_scatter, …")],
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks to start.")] = 2,
    backend: Annotated[str, typer.Option(help="The backend to measure.")] = "auto",
    sizes: Annotated[
        str, typer.Option(metavar="FROM:TO", help="Bytes, by factors: 8:64M, 8:64M:4, or 4K,1M.")
    ] = "8:64M",
    dtype: Annotated[str, typer.Option(help="Of the elements, as torch spells it.")] = "float32",
    device: Annotated[str, typer.Option(help="Where the tensors live.")] = "cpu",
    peer: Annotated[str, typer.Option(help="Measure torch.distributed with this backend too: gloo, nccl, …")] = "",
    seconds: Annotated[float, typer.Option(min=0.001, help="About how long to measure each size.")] = 0.3,
    nnodes: Annotated[int, typer.Option(min=1, help="How many machines take part; run this on each.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of them this is; 0 prints the table.")] = 0,
    rendezvous: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where node 0 is reached.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Time a collective over sizes: median, percentiles, bandwidth, and whether the results are right.

    Busbw is what nccl-tests call so: algbw times 2(n-1)/n for all_reduce, (n-1)/n for gathering, scattering and
    exchanging, 1 for broadcast and reduce; it compares with the speed of the link whatever n is.
    """
    from torchcomms.bench import Plan, main
    from torchcomms.errors import CommsTimeout, InvalidCall

    try:
        plan = Plan.read(
            operation, sizes, ranks, backend=backend, dtype=dtype, device=device, peer=peer, seconds=seconds
        )
        code = main(plan, as_json, nodes=nnodes, node=node_rank, rendezvous=rendezvous)
    except InvalidCall as error:
        raise typer.BadParameter(str(error)) from None
    except CommsTimeout as error:
        typer.echo(f"torchcomms: {error}", err=True)
        code = 1
    raise typer.Exit(code)


@app.command()
def doctor(
    test: Annotated[
        bool, typer.Option("--test", help="Run an all_reduce on two ranks of every usable backend.")
    ] = False,
    sheet: Annotated[
        str, typer.Option(metavar="BACKEND", help="Run the conformance kit on it; print what it can do.")
    ] = "",
) -> None:
    """Say what there is on this machine, which backends work on it, and what to do about the others.

    The exit code is 1 if no backend is usable, or one fails its test.
    """
    if sheet:
        from torchcomms.errors import BackendNotFound
        from torchcomms.testing.sheet import print_sheet

        try:
            raise typer.Exit(print_sheet(sheet))
        except BackendNotFound as error:
            raise typer.BadParameter(str(error), param_hint="--sheet") from None
    from torchcomms.doctor import main

    raise typer.Exit(main(test))


@app.command()
def trace(
    dumps: Annotated[list[Path], typer.Argument(help="Files that flight recorders wrote, or folders of them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The timeline, for Perfetto or Chrome.")] = Path(
        "trace.json"
    ),
) -> None:
    """Merge the ranks' flight records into one timeline, and say which rank is behind in which operation."""
    from torchcomms.errors import InvalidCall
    from torchcomms.trace import merge

    try:
        lines = merge(dumps, output)
    except (InvalidCall, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    for line in lines:
        typer.echo(line)


@app.command()
def tune(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="How many ranks to start.")] = 2,
    backend: Annotated[str, typer.Option(help="The backend whose derived operations are measured.")] = "tcp",
    operation: Annotated[list[str] | None, typer.Option("-o", help="An operation; may be repeated. All.")] = None,
    size: Annotated[list[int] | None, typer.Option("-s", help="Bytes; may be repeated. 8 to 4 MiB.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Calls of each case.")] = 10,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be measured.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Only print what is cached.")] = False,
) -> None:
    """Measure which algorithm is fastest for each operation and size on this machine, and remember it.

    Communicators opened later on machines like this one use the result, whatever the size of their group: groups of
    up to N ranks go by what N ranks gave.
    """
    from rich.console import Console

    from torchcomms.errors import CommsError
    from torchcomms.tuner import plan_of, show_cached
    from torchcomms.tuner import tune as measure

    console = Console()
    if show:
        raise typer.Exit(show_cached(backend, console))
    try:
        measure(
            plan_of(backend, ranks, tuple(operation or ()), tuple(size or ()), repeats),
            dry_run=dry_run,
            console=console,
        )
    except CommsError as error:
        typer.echo(f"torchcomms: {error}", err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """The entry point of the console script."""
    app()
