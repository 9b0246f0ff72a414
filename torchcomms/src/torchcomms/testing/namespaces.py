"""Hosts made of network namespaces of this machine, joined by a virtual cable that can be slow or cut. Needs root."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLONE_NEWNET = 0x40000000  # of <sched.h>


class NoNamespaces(RuntimeError):
    """This machine does not let us make network namespaces; the message says what it said."""


class Hosts:
    """Two namespaces: `names`, the `devices` of the cable in them, and their `addresses`."""

    def __init__(self) -> None:
        token = uuid.uuid4().hex[:6]
        self.names = [f"tc-{token}-{end}" for end in "ab"]
        self.devices = [f"tc{token}{end}" for end in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def up(self) -> None:
        """Make them. Raises `NoNamespaces`."""
        for name in self.names:
            _ip("netns", "add", name)
        (one, other), (here, there) = self.devices, self.names
        _ip("link", "add", one, "netns", here, "type", "veth", "peer", "name", other, "netns", there)
        for name, device, address in zip(self.names, self.devices, self.addresses, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")

    def cut(self) -> float:
        """Take the cable out, of which no connection is told; the moment (monotonic)."""
        _ip("-n", self.names[1], "link", "set", self.devices[1], "down")
        return time.monotonic()

    def throttle(self, rate: str) -> None:
        """Let the cable carry no more than `rate`, as in "20mbit", each way."""
        for name, device in zip(self.names, self.devices, strict=True):
            limits = ["rate", rate, "burst", "256kbit", "latency", "200ms"]
            _run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *limits)

    def down(self) -> None:
        """Remove what there is of them."""
        for name in self.names:
            with suppress(NoNamespaces):
                _ip("netns", "del", name)


@contextmanager
def joined() -> Iterator[Hosts]:
    """Two hosts for the time of a block. Raises `NoNamespaces`."""
    hosts = Hosts()
    try:
        hosts.up()
        yield hosts
    finally:
        hosts.down()


def enter(name: str) -> None:
    """Move this thread into a namespace; sockets that it opens from now on are there."""
    with open(f"/run/netns/{name}") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, f"namespace {name!r} cannot be entered: {os.strerror(number)}")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError as error:
        raise NoNamespaces(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
