"""The last operations of a process, as torch's flight recorder words them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VERSION = "2.10"  # of torch's format
# c10's names of dtypes; the others are called as in torch.
_DTYPES = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "uint8": "Byte",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


@dataclass(slots=True)
class Record:
    """One operation. Times are nanoseconds since 1970."""

    record_id: int
    group: str
    backend: str
    operation: str
    op_id: int
    collective_seq_id: int
    p2p_seq_id: int
    inputs: tuple[tuple[list[int], str], ...]
    outputs: tuple[tuple[list[int], str], ...]
    timeout_ms: int
    site: str
    peers: str = ""  # "0->1" of a send, "0<-1" of a receive
    time_created_ns: int = field(default_factory=time.time_ns)
    time_completed_ns: int | None = None
    error: str | None = None

    @property
    def state(self) -> str:
        """Where it stands, in torch's words."""
        return "started" if self.time_completed_ns is None or self.error is not None else "completed"

    def entry(self) -> dict[str, Any]:
        """The record as an entry of a dump."""
        file, _, line = self.site.rpartition(":")
        done = self.time_completed_ns
        return {
            "record_id": self.record_id,
            "pg_id": 0,
            "process_group": [self.group, self.group],
            "collective_seq_id": self.collective_seq_id,
            "p2p_seq_id": self.p2p_seq_id,
            "op_id": self.op_id,
            "profiling_name": f"{self.backend}:{self.operation}" + (f" {self.peers}" if self.peers else ""),
            "input_sizes": [sizes for sizes, _ in self.inputs],
            "input_dtypes": [dtype for _, dtype in self.inputs],
            "output_sizes": [sizes for sizes, _ in self.outputs],
            "output_dtypes": [dtype for _, dtype in self.outputs],
            "time_created_ns": self.time_created_ns,
            "time_discovered_started_ns": self.time_created_ns,
            "time_discovered_completed_ns": done,
            "duration_ms": None if done is None else (done - self.time_created_ns) / 1e6,
            "state": self.state,
            "retired": self.state == "completed",
            "is_p2p": bool(self.peers),
            "timeout_ms": self.timeout_ms,
            "frames": [{"name": self.operation, "filename": file, "line": int(line)}] if line.isdigit() else [],
            "error": self.error,
        }


class Ring:
    """The last `limit` records."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque(maxlen=limit)
        self._made = 0
        self._open: dict[tuple[str, int], Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def begin(self, **facts: Any) -> None:
        """An operation begins; `facts` are the fields of `Record` but its id."""
        with self._lock:
            record = Record(self._made, **facts)
            self._made += 1
            self._records.append(record)
            self._open[record.group, record.op_id] = record

    def end(self, group: str, op_id: int, error: Exception | None) -> None:
        """It has ended."""
        with self._lock:
            record = self._open.pop((group, op_id), None)
            if record is not None:
                record.time_completed_ns = time.time_ns()
                record.error = None if error is None else f"{type(error).__name__}: {error}"

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._records.clear()
            self._open.clear()

    def entries(self, include_completed: bool) -> list[dict[str, Any]]:
        """The records, oldest first."""
        with self._lock:
            return [one.entry() for one in self._records if include_completed or one.state != "completed"]


def described(tensors: Sequence[Tensor]) -> tuple[tuple[list[int], str], ...]:
    """Sizes and dtypes of tensors."""
    names = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    return tuple((list(tensor.shape), _DTYPES.get(name, name)) for tensor, name in zip(tensors, names, strict=True))
