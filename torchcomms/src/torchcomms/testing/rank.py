"""What runs in the process of one rank: it opens members, runs functions on them and answers through a pipe."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, cast

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Store
from torchcomms.testing.world import shut


def serve(pipe: Connection, opener: Callable[..., Any], rank: int, size: int, host: str, port: int) -> None:
    """Answer requests until the pipe ends; each answer is a result or an exception."""
    torch.set_num_threads(1)
    gc.freeze()  # a collection would copy every page of what the server has imported
    store = cast(Store, TCPStore(host, port, is_master=False, timeout=timedelta(minutes=2)))
    members: dict[int, Any] = {}
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        try:
            answer: Any = None
            kind, group, *rest = pickle.loads(request)
            if kind == "open":
                epoch, timeout = rest
                members[group] = opener(rank, size, store, epoch, timeout)
            elif kind == "run":
                answer = rest[0](members[group])
            elif group in members:
                shut(members.pop(group))
        except Exception as error:
            answer = error
        pipe.send_bytes(_packed(answer))


def _packed(answer: object) -> bytes:
    # Not the pipe's own pickling: torch has taught it to pass tensors as shared memory, which would outlive them.
    try:
        return pickle.dumps(answer)
    except Exception as error:
        return pickle.dumps(TypeError(f"{answer!r} cannot be sent back: {error}"))
