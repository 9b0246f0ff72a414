"""The launchers of several machines: who has which ranks, and that all end when one fails.

They meet at a store that node 0 hosts and that is also the ranks' store. On one machine the store is all there is.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.errors import CommsTimeout, InvalidCall
from torchcomms.launcher.job import Job

TICK = 0.05  # seconds between two looks at the store while waiting
BEAT = 1.0  # seconds between two signs of life
SILENCE = 15.0  # seconds without one after which a machine counts as lost


class Nodes:
    """This machine's launcher among the others.

    `first` is the number of this machine's first rank, `size` that of all ranks; both are known after `meet`.
    `check` is called again and again during a wait, and may raise.
    """

    def __init__(self, job: Job, check: Callable[[], None]) -> None:
        self._job, self._until, self._check = job, time.monotonic() + job.patience, check
        self.host, port = job.address()
        if job.node:
            self._wait(lambda: _answers(self.host, port), lambda: [0])
        self.store = _store(self.host, port, not job.node)
        self.port: int = self.store.port
        self.first, self.size = 0, job.ranks
        self._beats = 0
        self._seen = {node: (b"", time.monotonic()) for node in range(job.nodes) if node != job.node}
        self._next = 0.0

    def meet(self) -> None:
        """Tell how many ranks start here and learn the same of the others; `CommsTimeout` names who did not come."""
        job = self._job
        if job.nodes == 1:
            return
        self._set("ranks", str(job.ranks))
        self._wait(lambda: not self._missing("ranks"), lambda: self._missing("ranks"))
        counts = [int(self.store.get(_key("ranks", node))) for node in range(job.nodes)]
        self.first, self.size = sum(counts[: job.node]), sum(counts)
        self._seen = {node: (b"", time.monotonic()) for node in self._seen}

    def trouble(self) -> str | None:
        """Give a sign of life and say which other machine has failed, if one has, and why."""
        if not self._seen or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + BEAT
        try:
            self._beats += 1
            self._set("beat", str(self._beats))
            failed = [node for node in self._seen if self.store.check([_key("failed", node)])]
            if failed:
                return f"node {failed[0]} failed: {self.store.get(_key('failed', failed[0])).decode()}"
            return self._silent()
        except RuntimeError as error:
            return f"node 0 cannot be reached any more: {str(error).splitlines()[0]}"

    def leave(self, failure: str | None) -> str | None:
        """Tell how this machine's ranks ended; node 0 stays until all others have. What it learns of them meanwhile."""
        if not self._seen:
            return None
        try:
            self._set("failed" if failure else "done", failure or "")
        except RuntimeError:
            return None  # the store is gone, and whoever hosted it has said why
        if self._job.node:
            return None
        until = time.monotonic() + (self._job.grace if failure else float("inf"))
        while self._present() and time.monotonic() < until:
            trouble = self.trouble()
            if trouble and not failure:
                return trouble
            self._check()
            time.sleep(TICK)
        return None

    def _present(self) -> list[int]:
        """The other machines whose ranks still run."""
        ended = ("done", "failed")
        return [node for node in self._seen if not any(self.store.check([_key(word, node)]) for word in ended)]

    def _silent(self) -> str | None:
        now = time.monotonic()
        for node, (beat, since) in self._seen.items():
            if self.store.check([_key("done", node)]):
                continue
            key = _key("beat", node)
            latest = self.store.get(key) if self.store.check([key]) else b""
            if latest != beat:
                self._seen[node] = latest, now
            elif now - since > SILENCE:
                return f"node {node} has given no sign of life for {SILENCE:g} s"
        return None

    def _missing(self, word: str) -> list[int]:
        return [node for node in range(self._job.nodes) if not self.store.check([_key(word, node)])]

    def _set(self, word: str, value: str) -> None:
        self.store.set(_key(word, self._job.node), value)

    def _wait(self, ready: Callable[[], bool], missing: Callable[[], list[int]]) -> None:
        # In short steps, so that an interrupt is heard: the store's own waits are deaf.
        while not ready():
            self._check()
            if time.monotonic() > self._until:
                names = ", ".join(map(str, missing()))
                host, port = self._job.address()
                raise CommsTimeout(
                    f"node {names} did not come to {host}:{port} within {self._job.patience:g} s: "
                    "start `torchcomms run` there too, and see that the port can be reached"
                )
            time.sleep(TICK)


def _store(host: str, port: int, hosting: bool) -> TCPStore:
    try:
        patience = timedelta(seconds=SILENCE)
        return TCPStore(host, port, is_master=hosting, wait_for_workers=False, timeout=patience)
    except RuntimeError as error:
        what = "cannot be opened here: choose another port" if hosting else "is no store of `torchcomms run`"
        raise InvalidCall(f"rendezvous {host}:{port} {what} ({str(error).splitlines()[0]})") from error


def _key(word: str, node: int) -> str:
    return f"torchcomms/run/{word}/{node}"


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False
