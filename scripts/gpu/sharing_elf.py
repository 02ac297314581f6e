"""The names that a shared library exports, read from its ELF file: no tool for that is needed."""

import mmap
import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS: Final = 11
_LOCAL: Final = 0


def exported(path: Path) -> set[str]:
    """Return the names of what a library defines for others.

    Raises:
        ValueError: the file is no library of this kind, or has no table of its symbols.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"{path} is no ELF file of 64 bits")
        header = _HEADER.unpack_from(data)
        at, size, count = header[6], header[11], header[12]
        sections = [_SECTION.unpack_from(data, at + size * index) for index in range(count)]
        for section in sections:
            if section[1] == _DYNAMIC_SYMBOLS:
                names_at, names_bytes = sections[section[6]][4:6]
                names = data[names_at : names_at + names_bytes]
                return _names(data[section[4] : section[4] + section[5]], names)
    raise ValueError(f"{path} has no dynamic symbols")


def _names(table: bytes, names: bytes) -> set[str]:
    found: set[str] = set()
    for name_at, info, _, section, _, _ in _SYMBOL.iter_unpack(table):
        if section and info >> 4 != _LOCAL:
            found.add(names[name_at : names.index(b"\0", name_at)].decode("ascii", "replace"))
    return found
