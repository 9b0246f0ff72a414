"""The flight recorder: a hook that keeps the last operations, to be read after something went wrong.

Set TORCHCOMMS_TRACE_DIR to a folder, or give `new_comm` the hint "trace_dir": every communicator then records, and when
it fails or times out writes its records there. `torchcomms trace FOLDER/*.json` merges the ranks' files.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcomms.fingerprint import call_site
from torchcomms.hooks.nan_check import tensors
from torchcomms.hooks.ring import VERSION, Ring, described

if TYPE_CHECKING:
    from torchcomms.comm import OpName, PostHookArgs, PreHookArgs, RemovableHandle, TorchComm

TRACE_DIR = "TORCHCOMMS_TRACE_DIR"
DUMP_FILE = "TORCHCOMM_FR_DUMP_TEMP_FILE"  # upstream's name: the path to which `dump_file` adds the rank
DEFAULT_DUMP_FILE = "/tmp/torchcomm_fr_trace_"
_QUIET = frozenset({"split", "new_window", "finalize"})


class FlightRecorderHook:
    """Keeps the last `max_entries` operations of the communicators that it is registered with.

    Every recorder keeps its own records, whatever `isolated` says.
    """

    def __init__(self, max_entries: int = 2000, isolated: bool = True) -> None:
        self._ring = Ring(max_entries)
        self._handles: list[RemovableHandle] = []
        self._comms: dict[str, weakref.ref[TorchComm]] = {}

    def register_with_comm(self, comm: TorchComm) -> None:
        """Record the operations of a communicator; one recorder may watch several."""
        watch = _Watch(self._ring, comm)
        self._comms[comm.get_name()] = weakref.ref(comm)
        self._handles += [comm.register_pre_hook(watch.before), comm.register_post_hook(watch.after)]

    def unregister(self) -> None:
        """Record nothing any more; what is recorded stays."""
        while self._handles:
            self._handles.pop().remove()

    def is_enabled(self) -> bool:
        """Whether it is registered with a communicator."""
        return bool(self._handles)

    def size(self) -> int:
        """How many operations it holds."""
        return len(self._ring)

    def reset(self) -> None:
        """Forget all operations."""
        self._ring.clear()

    def dump_json(self, include_completed: bool = True) -> str:
        """The records as JSON, in the format of torch's flight recorder."""
        return json.dumps(self._dump(include_completed))

    def dump_file(self, rank: int, include_completed: bool = True) -> str:
        """Write the records as torch's own tools read them, a pickle, and return the path.

        The path is the value of TORCHCOMM_FR_DUMP_TEMP_FILE with the rank behind it, unless it ends in the rank.
        """
        prefix = os.environ.get(DUMP_FILE, DEFAULT_DUMP_FILE)
        path = prefix if re.search(rf"(?<!\d){rank}$", prefix) else f"{prefix}{rank}"
        Path(path).write_bytes(pickle.dumps(self._dump(include_completed)))
        return path

    def write(self, folder: str | os.PathLike[str], comm: TorchComm) -> Path:
        """Write the records as JSON into `folder`, under the name and rank of `comm`, and return the path."""
        name = re.sub(r"[^\w.-]", "_", comm.get_name())
        path = Path(folder, f"{name}.{comm.get_rank()}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part")
        unfinished.write_text(self.dump_json())
        unfinished.replace(path)
        return path

    def _dump(self, include_completed: bool) -> dict[str, Any]:
        comms = [comm for reference in self._comms.values() if (comm := reference()) is not None]
        ranks = {comm.get_name(): _listed(range(comm.get_size())) for comm in comms}
        return {
            "version": VERSION,
            "rank": comms[0].get_rank() if comms else 0,
            "pg_config": {name: {"name": name, "desc": name, "ranks": listed} for name, listed in ranks.items()},
            "pg_status": {},
            "entries": self._ring.entries(include_completed),
        }


class _Watch:
    """What the hooks of one communicator record."""

    def __init__(self, ring: Ring, comm: TorchComm) -> None:
        self._ring, self._name = ring, comm.get_name()
        self._comm = weakref.ref(comm)
        self._collectives = self._messages = 0

    def before(self, operation: OpName, op_id: int, args: PreHookArgs) -> None:
        comm = self._comm()
        if comm is None or operation.name in _QUIET:
            return
        arrow = {"send": "->", "recv": "<-"}.get(operation.name)
        if arrow is None:
            self._collectives += 1
        else:
            self._messages += 1
        own = [] if args.tensor is None else [args.tensor]
        self._ring.begin(
            group=self._name,
            backend=comm.get_backend(),
            operation=operation.name,
            op_id=op_id,
            collective_seq_id=self._collectives,
            p2p_seq_id=self._messages,
            inputs=described([*own, *tensors(args.input)]),
            outputs=described([*own, *tensors(args.output)]),
            timeout_ms=round(args.timeout * 1e3),
            site=call_site(),
            peers="" if arrow is None else f"{comm.get_rank()}{arrow}{args.peer}",
        )

    def after(self, op_id: int, args: PostHookArgs) -> None:
        self._ring.end(self._name, op_id, args.error)


def record_if_asked(comm: TorchComm) -> None:
    """Make a communicator record and, when it fails, write its records, where the hint or the environment says so."""
    folder = comm.get_options().hints.get("trace_dir") or os.environ.get(TRACE_DIR)
    if folder is None:
        return
    recorder, reference = FlightRecorderHook(), weakref.ref(comm)
    recorder.register_with_comm(comm)

    def dump() -> None:
        failed = reference()
        if failed is not None:
            recorder.write(folder, failed)

    comm.register_abort_hook(dump)


def _listed(ranks: Iterable[int]) -> str:
    return f"[{','.join(map(str, ranks))}]"
