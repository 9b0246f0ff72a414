"""Reads what the contract cares about from an ELF file: symbols and sections (System V gABI, chapters 4 and 5)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SYMTAB, _WRITE = 2, 1


@dataclass(frozen=True, slots=True)
class Section:
    """One section header."""

    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol; `section` 0 means that it is undefined."""

    name: str
    section: int


class Elf:
    """A parsed ELF file of either class and byte order.

    Raises:
        ValueError: `code` is not ELF, or is cut short.
    """

    def __init__(self, code: bytes) -> None:
        if code[:4] != b"\x7fELF" or len(code) < 64:
            raise ValueError(f"not an ELF file: it begins with {code[:4]!r}")
        self._code = code
        self._wide = code[4] == 2
        self._order = "<" if code[5] == 1 else ">"
        try:
            self.sections = tuple(self._read_sections())
            self.symbols = tuple(self._read_symbols())
        except (struct.error, IndexError) as error:
            raise ValueError(f"the ELF file is cut short: {error}") from error

    @property
    def undefined(self) -> tuple[str, ...]:
        """Names that another object would have to define."""
        return tuple(symbol.name for symbol in self.symbols if symbol.section == 0 and symbol.name)

    @property
    def writable(self) -> dict[str, int]:
        """Bytes of each section with memory that the code could write; relocated constants are left out."""
        sections = (s for s in self.sections if s.flags & _WRITE and s.size)
        return {s.name: s.size for s in sections if not s.name.startswith(".data.rel.ro")}

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, self._code, offset)

    def _string(self, start: int, offset: int) -> str:
        begin = start + offset
        return self._code[begin : self._code.index(b"\0", begin)].decode()

    def _read_sections(self) -> Iterator[Section]:
        (table,) = self._unpack("Q", 40) if self._wide else self._unpack("I", 32)
        size, count, names = self._unpack("HHH", 58 if self._wide else 46)
        form = "IIQQQQIIQQ" if self._wide else "IIIIIIIIII"
        if not count:
            raise IndexError("no sections")
        headers = [self._unpack(form, table + i * size) for i in range(count)]
        for name, kind, flags, _, offset, length, link, *_ in headers:
            yield Section(self._string(headers[names][4], name), kind, flags, offset, length, link)

    def _read_symbols(self) -> Iterator[Symbol]:
        size, form = (24, "IBBHQQ") if self._wide else (16, "IIIBBH")
        for table in (section for section in self.sections if section.kind == _SYMTAB):
            strings = self.sections[table.link].offset
            for offset in range(table.offset, table.offset + table.size, size):
                fields = self._unpack(form, offset)
                yield Symbol(self._string(strings, fields[0]), fields[3] if self._wide else fields[5])
