"""How the ranks of a group of sockets find and connect to each other through the store.

Each rank listens, publishes its address with a secret, connects to the ranks below it and accepts those above. Only
who knows the secret, which is in the store alone, gets in; anyone else is hung up on. The host `MACHINE` stands for
this machine: its sockets are of AF_UNIX, on names without a file.
"""

from __future__ import annotations

import json
import secrets
import socket
import struct
import time
from collections.abc import Collection, Iterable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from torchcomms.backend import Store
from torchcomms.errors import CommsTimeout, NoRendezvous, name_ranks
from torchcomms.locality import EARLY

HELLO = struct.Struct("<16sI")
PATIENCE = 2.0  # seconds that someone who connected may take to say hello
LOOPBACK = "127.0.0.1"
MACHINE = "unix:"
ROOM = 4 << 20  # bytes of a socket's buffers, each way


def local_address(store: Store) -> str:
    """The address of this machine from which the store is reached; loopback for a store that names no host."""
    plain: Any = store
    while hasattr(plain, "underlying_store"):
        plain = plain.underlying_store
    host = getattr(plain, "host", None)
    if not isinstance(host, str) or not host:
        return LOOPBACK
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing: it only chooses the route
        return str(probe.getsockname()[0])


def listen(host: str) -> socket.socket:
    """A listening socket on a free port of `host`, IPv4 or IPv6, or on a free name of this `MACHINE`."""
    try:
        family, address = _free_address(host)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise NoRendezvous(f"this rank cannot listen at {host!r}: {error}; say host= in the options") from error
    return listener


def _free_address(host: str) -> tuple[int, Any]:
    if host == MACHINE:
        return socket.AF_UNIX, f"\0torchcomms-{secrets.token_hex(16)}"
    family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    return family, address


def _published(host: str, listener: socket.socket) -> dict[str, Any]:
    """Where `listener` is found, in words of JSON."""
    name = listener.getsockname()
    return {"name": name[1:].decode()} if host == MACHINE else {"host": host, "port": name[1]}


def _dial(place: dict[str, Any], patience: float) -> socket.socket:
    if "name" not in place:
        return socket.create_connection((place["host"], place["port"]), patience)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(patience)
        connection.connect("\0" + place["name"])
    except OSError:
        connection.close()
        raise
    return connection


def connect_all(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    host: str,
    deadline: float,
    *,
    peers: Collection[int] | None = None,
) -> dict[int, socket.socket]:
    """Connections to every other rank, or to `peers`, who list this rank too; all of them, or an error and none."""
    connections: dict[int, socket.socket] = {}
    wanted = set(range(size) if peers is None else peers) - {rank}
    if not wanted:
        return connections
    secret = secrets.token_bytes(16)
    with listen(host) as listener:
        place = _published(host, listener) | {"secret": secret.hex()}
        store.set(f"{prefix}/{rank}", json.dumps(place))
        try:
            for peer in sorted(peer for peer in wanted if peer < rank):
                connections[peer] = _connect(store, f"{prefix}/{peer}", peer, rank, deadline)
            while len(connections) < len(wanted):
                _accept(listener, secret, connections, wanted - connections.keys(), deadline)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
    return connections


def _connect(store: Store, key: str, peer: int, rank: int, deadline: float) -> socket.socket:
    try:
        store.wait([key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
    except (RuntimeError, TimeoutError) as error:
        if time.monotonic() < deadline - EARLY:
            raise
        raise _late([peer]) from error
    place = json.loads(store.get(key))
    try:
        connection = _dial(place, max(0.001, deadline - time.monotonic()))
    except TimeoutError as error:
        raise _late([peer]) from error
    except ConnectionRefusedError as error:
        raise NoRendezvous(f"rank {peer} listens where nobody is to be reached: {_remedy(place)}") from error
    _tune(connection)
    connection.sendall(HELLO.pack(bytes.fromhex(place["secret"]), rank))
    return connection


def _remedy(place: dict[str, Any]) -> str:
    if "name" in place:
        return "it runs on another machine or in another network namespace; use tcp, or hier"
    return "it has gone, or a firewall refuses; look at its output"


def _accept(
    listener: socket.socket, secret: bytes, connections: dict[int, socket.socket], awaited: set[int], deadline: float
) -> None:
    listener.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        connection, _ = listener.accept()
    except TimeoutError as error:
        raise _late(awaited) from error
    peer = _hello(connection, secret, awaited)
    if peer is None:
        connection.close()
        return
    _tune(connection)
    connections[peer] = connection


def _hello(connection: socket.socket, secret: bytes, awaited: set[int]) -> int | None:
    connection.settimeout(PATIENCE)
    try:
        said = connection.recv(HELLO.size, socket.MSG_WAITALL)
    except OSError:
        return None
    if len(said) < HELLO.size:
        return None
    word, peer = HELLO.unpack(said)
    return int(peer) if secrets.compare_digest(word, secret) and peer in awaited else None


def _late(ranks: Iterable[int]) -> CommsTimeout:
    missing = frozenset(ranks)
    return CommsTimeout(f"{name_ranks(missing)} did not open the group in time", missing=missing)


def _tune(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, limit in ((socket.SO_SNDBUF, "wmem_max"), (socket.SO_RCVBUF, "rmem_max")):
        # Room for a whole message saves turns on a busy machine. Where less is allowed, the system tunes better itself.
        if _allowed(limit) >= ROOM:
            connection.setsockopt(socket.SOL_SOCKET, option, ROOM)


@cache
def _allowed(limit: str) -> int:
    try:
        return int(Path("/proc/sys/net/core", limit).read_text())
    except OSError:
        return 0
