"""The `.edge` program file: write it in one pass, read it with every offset, length and hash checked.

Little-endian: magic `EDGE`, u16 major, u16 minor, u64 manifest offset, u64 manifest length, sha256 of the manifest;
then the segments, on 64 bytes (weights on 64 KiB, so that they can be mapped anywhere), and the manifest last.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from executor import manifest_json
from executor.errors import DamagedFileError, FileVersionError, ManifestError
from executor.manifest import ALIGNMENT, KINDS, WEIGHTS_ALIGNMENT, Manifest, Method, Segment, State, Weight

Buffer = bytes | bytearray | memoryview
Path = str | os.PathLike[str]

MAGIC = b"EDGE"
MAJOR, MINOR = 1, 0
HEADER = struct.Struct("<4sHHQQ32s")

_CHUNK = 1 << 24
_AGAIN = "fetch or compile it again"


@dataclass(frozen=True, slots=True)
class WeightData:
    """A constant to be written: the dense row-major bytes of a tensor, borrowed until `write` returns."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Buffer


@dataclass(frozen=True, slots=True)
class Blob:
    """Another segment to be written: `kind` is one of `manifest.KINDS` except weights; code names its target."""

    kind: str
    data: Buffer
    target: str = ""


def write(
    path: Path,
    *,
    methods: Sequence[Method],
    state: Sequence[State] = (),
    weights: Sequence[WeightData] = (),
    segments: Sequence[Blob],
    producer: str = "executor",
    version: str = "",
) -> Manifest:
    """Write a program file to `path`, all of it or nothing, and return its manifest.

    Weights are streamed from the caller's memory without a copy; they make up one segment, in their order, each on 64
    bytes. ManifestError if the parts do not agree; OSError if the disk refuses.
    """
    _check_kinds([blob.kind for blob in segments])
    folder, name = os.path.split(path)
    partial = os.path.join(folder, f".{name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.seek(HEADER.size)
            placed = [_put(stream, blob.kind, [blob.data], ALIGNMENT, blob.target) for blob in segments]
            if weights:
                placed.append(_put(stream, "weights", [w.data for w in weights], WEIGHTS_ALIGNMENT))
            table = tuple(_table(weights, len(placed) - 1))
            manifest = Manifest(producer, version, tuple(methods), tuple(state), table, tuple(placed))
            _finish(stream, manifest_json.dump(manifest))
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return manifest


class ProgramFile:
    """A program file, checked and mapped read-only: its `manifest` and its segments' bytes.

    DamagedFileError, FileVersionError or OSError if it cannot be used. The mapping lives until `close`, or as long as
    somebody holds one of its segments.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size < HEADER.size:
                raise DamagedFileError(self.path, f"{size} bytes, less than a header of {HEADER.size}", _AGAIN)
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = memoryview(self._map)
        try:
            self.manifest = self._read_manifest()
            for index, segment in enumerate(self.manifest.segments):
                self._check_segment(index, segment)
        except BaseException:
            self.close()
            raise

    def segment(self, index: int) -> memoryview:
        """The bytes of segment number `index`, read-only."""
        segment = self.manifest.segments[index]
        return self._bytes[segment.offset : segment.offset + segment.length]

    def find(self, kind: str) -> Iterator[tuple[Segment, memoryview]]:
        """The segments of one kind with their bytes, in the file's order."""
        for index, segment in enumerate(self.manifest.segments):
            if segment.kind == kind:
                yield segment, self.segment(index)

    def close(self) -> None:
        """Give the mapping back. Idempotent; segments still held keep it alive."""
        self._bytes.release()
        try:
            self._map.close()
        except BufferError:
            return

    def _read_manifest(self) -> Manifest:
        magic, major, _, offset, length, digest = HEADER.unpack(self._bytes[: HEADER.size])
        if magic != MAGIC:
            raise FileVersionError(self.path, f"begins with {magic!r}, so is no program file", "give a .edge file")
        if major != MAJOR:
            cure = "install an executor of that format, or compile it again"
            raise FileVersionError(self.path, f"format {major}, where this version reads {MAJOR}", cure)
        self._check_range("the manifest", offset, length, HEADER.size)
        text = bytes(self._bytes[offset : offset + length])
        if hashlib.sha256(text).digest() != digest:
            raise DamagedFileError(self.path, "the manifest does not match its sha256", _AGAIN)
        try:
            manifest = manifest_json.load(text)
        except ManifestError as error:
            raise DamagedFileError(self.path, str(error), _AGAIN) from error
        self._check_layout(manifest.segments, offset, length)
        return manifest

    def _check_layout(self, segments: tuple[Segment, ...], offset: int, length: int) -> None:
        """Nothing reaches out of the file, lies on another part or is out of alignment; `ir` is there."""
        taken = HEADER.size
        parts = [(offset, length, "the manifest"), *((s.offset, s.length, f"a {s.kind!r} segment") for s in segments)]
        for at, size, what in sorted(parts):
            self._check_range(what, at, size, taken)
            taken = at + size
        for segment in segments:
            alignment = WEIGHTS_ALIGNMENT if segment.kind == "weights" else ALIGNMENT
            if segment.offset % alignment:
                what = f"a {segment.kind!r} segment at {segment.offset}, not on {alignment} bytes"
                raise DamagedFileError(self.path, what, _AGAIN)
        if (held := [segment.kind for segment in segments].count("ir")) != 1:
            raise DamagedFileError(self.path, f"{held} segments of kind 'ir', where one is due", _AGAIN)

    def _check_range(self, what: str, offset: int, length: int, taken: int) -> None:
        size = len(self._bytes)
        if offset < taken:
            raise DamagedFileError(self.path, f"{what} at {offset} lies on the part before it", _AGAIN)
        if length > size - offset:
            raise DamagedFileError(self.path, f"{what} ends at {offset + length} of {size} bytes: truncated", _AGAIN)

    def _check_segment(self, index: int, segment: Segment) -> None:
        # A kind of a later version is skipped: its bytes are never used, so its hash says nothing to us.
        if segment.kind in KINDS and hashlib.sha256(self.segment(index)).hexdigest() != segment.sha256:
            raise DamagedFileError(self.path, f"a {segment.kind!r} segment does not match its sha256", _AGAIN)


def _check_kinds(kinds: list[str]) -> None:
    known = [kind for kind in KINDS if kind != "weights"]
    if odd := sorted(set(kinds) - set(known)):
        raise ManifestError(f"segments of kind {odd}; what may be given is {known} (weights go in by themselves)")
    if kinds.count("ir") != 1:
        raise ManifestError(f"{kinds.count('ir')} segments of kind 'ir': a file holds its loops once")


def _put(stream: BinaryIO, kind: str, parts: Sequence[Buffer], alignment: int, target: str = "") -> Segment:
    """Write one segment of which each part begins on 64 bytes, hashing what goes by."""
    stream.seek(-stream.tell() % alignment, os.SEEK_CUR)
    offset, digest = stream.tell(), hashlib.sha256()
    for part in parts:
        padding = bytes(-(stream.tell() - offset) % ALIGNMENT)
        for chunk in (memoryview(padding), *_chunks(part)):
            digest.update(chunk)
            stream.write(chunk)
    return Segment(kind, offset, stream.tell() - offset, digest.hexdigest(), target)


def _chunks(part: Buffer) -> Iterator[memoryview]:
    whole = memoryview(part)
    flat = whole.cast("B") if whole.nbytes else memoryview(b"")
    return (flat[at : at + _CHUNK] for at in range(0, len(flat), _CHUNK))


def _table(weights: Sequence[WeightData], segment: int) -> Iterator[Weight]:
    offset = 0
    for weight in weights:
        offset += -offset % ALIGNMENT
        length = memoryview(weight.data).nbytes
        yield Weight(weight.name, weight.dtype, weight.shape, segment, offset, length)
        offset += length


def _finish(stream: BinaryIO, manifest: bytes) -> None:
    """The manifest at the end, and the header that points at it."""
    stream.seek(-stream.tell() % ALIGNMENT, os.SEEK_CUR)
    header = HEADER.pack(MAGIC, MAJOR, MINOR, stream.tell(), len(manifest), hashlib.sha256(manifest).digest())
    stream.write(manifest)
    stream.seek(0)
    stream.write(header)
