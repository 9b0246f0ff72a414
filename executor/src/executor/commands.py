"""What each command of the command line does; all are also plain calls of the Python API."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from executor import manifest_json, trees
from executor.errors import CommandError
from executor.expressions import evaluate
from executor.file import ProgramFile
from executor.runtime import BoundMethod, Runtime, load

if TYPE_CHECKING:
    from executor.arrays import Array
    from executor.manifest import Method


def compile_model(options: argparse.Namespace) -> int:
    """`compile MODULE:FACTORY -o FILE`"""
    import executor

    made = _factory(options.model)()
    if isinstance(made, dict):
        program = executor.compile(made, target=options.target)
    elif isinstance(made, tuple) and len(made) in (2, 3):
        model, args, *rest = made
        program = executor.compile(model, args, target=options.target, **(rest[0] if rest else {}))
    else:
        raise CommandError(f"{options.model} returned a {type(made).__name__}; due (model, args) or a dict of them")
    program.save(options.output)
    print(program.report())
    print(f"{options.output}: {os.path.getsize(options.output):,} bytes")
    return 0


def run(options: argparse.Namespace) -> int:
    """`run FILE --input name=file.npy`"""
    import numpy as np

    with load(options.file, allow_code=not options.interpret) as runtime:
        method = _method(runtime, options.method)
        outputs = method.flat(_inputs(method.method, _pairs(options.inputs)))
        named = dict(zip([leaf.name for leaf in method.method.outputs], outputs, strict=True))
    if options.output:
        np.savez(options.output, **named)
        return 0
    for leaf in method.method.outputs:
        print(f"{leaf.name}: {named[leaf.name].dtype}{list(named[leaf.name].shape)}\n{named[leaf.name]}")
    return 0


def inspect(options: argparse.Namespace) -> int:
    """`inspect FILE`"""
    file = ProgramFile(options.file)
    manifest = file.manifest
    file.close()
    if options.json:
        print(json.dumps(json.loads(manifest_json.dump(manifest)), indent=1, ensure_ascii=False))
        return 0
    print(f"{options.file}: {os.path.getsize(options.file):,} bytes, by {manifest.producer} {manifest.version}")
    for method in manifest.methods:
        print("\n".join(_describe(method)))
    for entry in manifest.state:
        print(f"state {entry.name}: {entry.dtype}{list(entry.shape)}, starts as {entry.initial or 'zeros'}")
    print(f"weights: {len(manifest.weights)}, {sum(weight.length for weight in manifest.weights):,} bytes")
    for segment in manifest.segments:
        print(f"segment {segment.kind} {segment.target}".rstrip() + f": {segment.length:,} bytes at {segment.offset:,}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """`verify FILE`: 0 if every output is as recorded, 1 otherwise."""
    from executor import vectors

    with load(options.file, allow_code=not options.interpret) as runtime:
        cases = runtime.cases()
        if not cases:
            raise CommandError(f"{options.file} holds no test vectors: compile the model again with this version")
        comparisons = vectors.replay(runtime, cases)
    for found in comparisons:
        mark = "ok" if found.within else "DIFFERS"
        print(f"{found.method}.{found.output}: largest difference {found.max_abs_diff:.3g}  {mark}")
    vectors.require(comparisons)
    return 0


def bench(options: argparse.Namespace) -> int:
    """`bench FILE`: calls on inputs of the test vectors, or of zeros."""
    with load(options.file, allow_code=not options.interpret) as runtime:
        method = _method(runtime, options.method)
        inputs = _bench_inputs(runtime, method.method, _pairs(options.sizes))
        arguments = trees.unflatten(method.method.input_tree, inputs)
        method(**arguments)
        times: list[float] = []
        end = time.perf_counter() + options.seconds
        while time.perf_counter() < end or len(times) < 2:
            start = time.perf_counter()
            method(**arguments)
            times.append(time.perf_counter() - start)
    first, median, third = (1e3 * value for value in statistics.quantiles(times, n=4))
    print(f"{method.method.name}: median {median:.4f} ms, quartiles {first:.4f} to {third:.4f}, {len(times)} calls")
    return 0


def _factory(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise CommandError(f"{name!r} names no factory: give MODULE:FACTORY, as in package.module:function")
    # As with `python -m`: modules of the current folder count, which a console script would not see.
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CommandError(f"cannot import {module_name!r}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(factory := getattr(module, attribute, None)):
        raise CommandError(f"{module_name!r} has no function {attribute!r}")
    return factory


def _method(runtime: Runtime, name: str | None) -> BoundMethod:
    if name is None and len(runtime.methods) == 1:
        name = next(iter(runtime.methods))
    if (name or "forward") not in runtime.methods:
        raise CommandError(f"no method {name or 'forward'!r}: choose one of {sorted(runtime.methods)} with --method")
    return runtime.methods[name or "forward"]


def _pairs(texts: list[str]) -> dict[str, str]:
    if odd := [text for text in texts if "=" not in text]:
        raise CommandError(f"{odd[0]!r} is no NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _inputs(method: Method, given: dict[str, str]) -> list[Any]:
    names = [leaf.name for leaf in method.inputs]
    if given.keys() != set(names):
        raise CommandError(f"inputs given: {sorted(given)}; method {method.name!r} takes {names}")
    return [_read(given[name]) for name in names]


def _read(text: str) -> Any:
    import numpy as np

    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    try:
        return np.load(text, allow_pickle=False)
    except ValueError as error:
        raise CommandError(f"{text!r} is neither a number nor a .npy file: {error}") from error


def _bench_inputs(runtime: Runtime, method: Method, sizes: dict[str, str]) -> list[Array]:
    """The first test vector's inputs, unless sizes are given; else zeros."""
    from executor.arrays import aligned

    for case in runtime.cases():
        if case.method == method.name and not sizes:
            return list(case.inputs)
    unknown = sorted(sizes.keys() - {symbol.name for symbol in method.symbols})
    if unknown or not all(text.isdecimal() for text in sizes.values()):
        raise CommandError(f"--size {sizes}: give whole numbers for {[symbol.name for symbol in method.symbols]}")
    values = {symbol.name: int(sizes.get(symbol.name, max(symbol.minimum, 1))) for symbol in method.symbols}
    return [aligned(leaf.dtype, tuple(evaluate(dim, values) for dim in leaf.shape)) for leaf in method.inputs]


def _describe(method: Method) -> list[str]:
    lines = [f"method {method.name}: arena {method.arena} bytes, state {list(method.state) or 'none'}"]
    lines += [f"  in  {leaf.name}: {leaf}" for leaf in method.inputs]
    lines += [f"  out {leaf.name}: {leaf}" for leaf in method.outputs]
    lines += [f"  {symbol.name} from {symbol.minimum} to {symbol.maximum}" for symbol in method.symbols]
    return lines
