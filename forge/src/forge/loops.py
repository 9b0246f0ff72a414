"""Running a loop beside the work that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["beside"]


async def beside(endless: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> None:
    """Run both until `work` is done, and end the endless one; the first error ends both and is raised as it is.

    A task group would wrap that error, which then is no longer what a caller expects to catch.
    """
    tasks = [asyncio.create_task(endless), asyncio.create_task(work)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
