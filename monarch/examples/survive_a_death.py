"""A rank is killed in the middle of a call: the call says which and why, and the others go on."""

from __future__ import annotations

import os
import signal
import threading

from monarch.actor import Actor, CallFailed, endpoint, this_host


class Sleeper(Actor):
    """Waits, or says which process it is."""

    @endpoint
    def wait(self) -> None:
        threading.Event().wait(60)

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


def main() -> None:
    with this_host().spawn_procs(per_host={"procs": 3}) as procs:
        sleepers = procs.spawn("sleepers", Sleeper)
        victim = sleepers.slice(procs=1).pid.call_one().get()
        waiting = sleepers.wait.call()
        os.kill(victim, signal.SIGKILL)
        try:
            waiting.get()
        except CallFailed as failed:
            print(failed)
            print("still waiting on ranks", failed.pending)
        print("rank 2 answers:", sleepers.slice(procs=2).pid.call_one().get() > 0)
        procs.stop(grace=0).get()


if __name__ == "__main__":
    main()
