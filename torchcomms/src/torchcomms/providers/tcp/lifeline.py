"""A second connection to each peer on another machine, on which nothing is ever sent: it ends when that machine does.

The kernel of a live machine answers keepalive probes however busy its processes are, so a rank that computes without
calling us is never taken for dead; a machine without power or network does not answer. The connection that carries
the data will not do for this: data in flight suspends its keepalive, and TCP_USER_TIMEOUT ends it also when a live peer
does not read for a while.
"""

from __future__ import annotations

import enum
import socket

MISSED = 3  # heartbeats of silence after which a machine counts as gone
PROBES = 1  # seconds between probes, the kernel's least: a congested network may lose some


class State(enum.Enum):
    """What a lifeline says."""

    ALIVE = enum.auto()
    CLOSED = enum.auto()  # by the peer's process or its end; the data connection tells which
    GONE = enum.auto()  # the machine does not answer, or has forgotten the connection


def is_remote(connection: socket.socket) -> bool:
    """Whether the two ends have different addresses: the peer's machine may vanish and this one go on."""
    if connection.family == socket.AF_UNIX:
        return False
    return bool(connection.getsockname()[0] != connection.getpeername()[0])


def machine(connection: socket.socket) -> object:
    """What tells the peer's machine from others: its address, if the connection still stands."""
    try:
        return connection.getpeername()[0]
    except OSError:
        return connection


def watch(connection: socket.socket, heartbeat: int) -> None:
    """Have the kernel end it when the peer's kernel has not answered for `MISSED` times `heartbeat` seconds."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBES)
    # The last second is the wait for an answer to the last probe.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, MISSED * heartbeat // PROBES - 1)


def state(connection: socket.socket) -> State:
    """What it says now, without blocking."""
    try:
        return State.ALIVE if connection.recv(1) else State.CLOSED
    except BlockingIOError:
        return State.ALIVE
    except OSError:
        return State.GONE
