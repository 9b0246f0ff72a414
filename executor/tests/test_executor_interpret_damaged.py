"""The interpreter on a program that makes no sense: an error of ours or a result, never anything else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import ManifestError, ProgramRunError
from executor.file import ProgramFile
from executor.interpret import Interpreter

pytestmark = pytest.mark.unit

names = st.sampled_from(["n", "k", "add", "where", "int64", "float32", "bool", "op", "load", "axis", "store", "temp"])
forms = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_mutated_program_runs_or_is_refused(write_program: Callable[..., Path], data: st.DataObject) -> None:
    file = ProgramFile(write_program())
    ((_, text),) = file.find("ir")
    place: Any = json.loads(bytes(text))
    form = place
    while True:
        key = data.draw(st.integers(0, len(place) - 1))
        if not isinstance(place[key], list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    place[key] = data.draw(forms)
    with contextlib.suppress(ManifestError, ProgramRunError):
        mutated = json.dumps(form).encode()
        state, weights = ({name: np.ones(1, np.float32)} for name in ("count", "scale"))
        interpreter = Interpreter(mutated, file.manifest, state, {"start": np.ones(1, np.float32), **weights})
        (y,) = interpreter.run(file.manifest.methods[0], [np.ones((2, 4), np.float32)], (2,))
        assert y.shape == (2, 4)
    file.close()
