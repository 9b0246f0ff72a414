"""The launcher `local`: the conformance kit, and what it does beyond it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

from monarch import ActorSpec, find_launcher
from monarch.errors import ConstructorError, PlacementError
from monarch.launchers.local import make
from monarch.spec import Launcher
from monarch.testing import CHECKS, check_launcher

pytestmark = [pytest.mark.contract, pytest.mark.system]


class Plain:
    """Imports nothing of the package, and cannot be imported elsewhere: the tests are no package."""

    def __init__(self, fail: bool = False) -> None:
        self.visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if fail:
            raise ValueError("not today")

    def seen(self) -> str | None:
        return self.visible

    def slice(self) -> None:
        """Has the name of a mesh's own method."""


def spec(**changes: Any) -> ActorSpec:
    return ActorSpec(**({"actor": Plain, "endpoints": ("seen",)} | changes))


def launched(launcher: Launcher, *specs: ActorSpec) -> None:
    async def main() -> None:
        try:
            await launcher.launch(*specs)
        finally:
            await launcher.close()

    asyncio.run(main())


def test_local_keeps_the_contract() -> None:
    report = check_launcher(find_launcher("local"))
    assert report.failed == {}
    assert report.ran == tuple(check.id for check in CHECKS)


@pytest.mark.parametrize(
    ("wants", "message"),
    [
        ({"resources": {"gpus": 3}}, "ask for 3 GPUs and 2 are free"),
        ({"resources": {"gpus": 0.5}}, "asks for 0.5 GPUs a rank; the local launcher gives whole ones"),
        ({"resources": {"memory": 1e18}}, "this machine has"),
        ({"restart": "one_for_one"}, "asks for restart 'one_for_one'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(wants: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        launched(make(gpus=2), spec(), spec(**wants))


def test_devices_are_given_per_rank_and_come_back() -> None:
    async def main() -> None:
        launcher = make(gpus=3)
        first, second = await launcher.launch(
            spec(extent={"procs": 2}, resources={"gpus": 1}), spec(resources={"gpus": 1})
        )
        assert (await first.seen.call()).values() == ["0", "1"]
        assert await second.seen.call_one() == "2"
        with pytest.raises(PlacementError, match="1 GPUs and 0 are free"):
            await launcher.launch(spec(resources={"gpus": 1}))
        await first.stop()
        (third,) = await launcher.launch(spec(resources={"gpus": 2}))
        assert await third.seen.call_one() == "0,1"
        await launcher.close()
        with pytest.raises(PlacementError, match="the launcher is closed"):
            await launcher.launch(spec())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kwargs": {"fail": True}}, ConstructorError, "the constructor of Plain on .* raised ValueError: not today"),
        ({"endpoints": ("sen",)}, ConstructorError, "Plain has no method 'sen'; did you mean 'seen'"),
        ({"endpoints": None}, ConstructorError, "Plain has no endpoint; mark methods with @endpoint, or list them"),
        ({"endpoints": ("slice",)}, ValueError, "may not be called slice: meshes use those names"),
    ],
)
def test_launch_that_fails_says_why(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        launched(make(), spec(**changes))
