"""The functions that a shared library exports, with their versions: from its ELF file.

Only what the node's CUDA driver needs: 64-bit, little-endian, with a table of sections (elf(5)).
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DEFINITION: Final = struct.Struct("<HHHHIII")
_DYNSYM, _VERDEF, _VERSYM = 11, 0x6FFFFFFD, 0x6FFFFFFF
_FUNCTIONS: Final = frozenset({2, 10})  # STT_FUNC, STT_GNU_IFUNC
_BINDINGS: Final = frozenset({1, 2})  # STB_GLOBAL, STB_WEAK
_VISIBLE: Final = frozenset({0, 3})  # STV_DEFAULT, STV_PROTECTED
_BASE: Final = 1  # VER_FLG_BASE: names the file, not a version


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int

    def of(self, data: mmap.mmap) -> bytes:
        return data[self.offset : self.offset + self.size]


def exported_functions(path: Path) -> dict[str, str]:
    """Return the names of functions that a library exports, each with its version or "".

    Raises:
        ValueError: it is no 64-bit little-endian ELF file with dynamic symbols.
        OSError: it cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return dict(_functions(data))
        except (struct.error, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise ValueError(f"its tables are damaged: {error}") from error


def _functions(data: mmap.mmap) -> Iterator[tuple[str, str]]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no 64-bit little-endian ELF file")
    *_, offset, _, _, _, _, _, count, _ = _HEADER.unpack_from(data)
    sections = [_section(data, offset + number * _SECTION.size) for number in range(count)]
    symbols = next((one for one in sections if one.kind == _DYNSYM), None)
    if symbols is None:
        raise ValueError("it has no dynamic symbols")
    names = sections[symbols.link].of(data)
    of_symbol = next((one.of(data) for one in sections if one.kind == _VERSYM), b"")
    versions = _versions(data, sections)
    for number, symbol in enumerate(_SYMBOL.iter_unpack(symbols.of(data))):
        name, info, other, section, _, _ = symbol
        if not section or info >> 4 not in _BINDINGS or info & 15 not in _FUNCTIONS:
            continue
        if other & 3 in _VISIBLE:
            version = of_symbol[2 * number : 2 * number + 2]
            yield _text(names, name), versions.get(int.from_bytes(version, "little") & 0x7FFF, "")


def _section(data: mmap.mmap, at: int) -> _Section:
    _, kind, _, _, offset, size, link, _, _, _ = _SECTION.unpack_from(data, at)
    return _Section(kind, offset, size, link)


def _versions(data: mmap.mmap, sections: list[_Section]) -> dict[int, str]:
    """Return the versions that the library defines, by their numbers in the table of symbols."""
    found: dict[int, str] = {}
    for section in (one for one in sections if one.kind == _VERDEF):
        content, names, at = section.of(data), sections[section.link].of(data), 0
        while True:
            _, flags, number, _, _, name_at, step = _DEFINITION.unpack_from(content, at)
            (name,) = struct.unpack_from("<I", content, at + name_at)
            if not flags & _BASE:
                found[number] = _text(names, name)
            if not step:
                break
            at += step
    return found


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode("ascii")
