"""Builds the interception library with the C compiler of the node; its path names its content.

The sources need no header of NVIDIA; the result also fits the node's driver (decision 18).
"""

import mmap
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gnode import compiling
from gnode.compiling import CompilerError
from gnode.gpushare.errors import NativeBuildError

_HEADER: Final = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DEFINITION: Final = struct.Struct("<HHHHIII")
_DYNSYM, _VERDEF, _VERSYM = 11, 0x6FFFFFFD, 0x6FFFFFFF
_FUNCTIONS: Final = frozenset({2, 10})  # STT_FUNC, STT_GNU_IFUNC
_BINDINGS: Final = frozenset({1, 2})  # STB_GLOBAL, STB_WEAK
_VISIBLE: Final = frozenset({0, 3})  # STV_DEFAULT, STV_PROTECTED
_BASE: Final = 1  # VER_FLG_BASE: names the file, not a version
NATIVE: Final = Path(__file__).with_name("native")
LIBRARY: Final = "libcuda.so.1"
ALIAS: Final = "libcuda.so"
SUFFIXES: Final = {"-": 0, "_ptds": 2, "_ptsz": 2}  # CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
#: The CUDA version of an entry point that only the driver knows: newer than all others.
UNKNOWN_VERSION: Final = 2**31 - 1
_OWN: Final = frozenset({"alias.c"})
_ENTRY_POINT: Final = re.compile(r"(cu\w+?)(_v[0-9]+)?(_pt[sd][sz])?", re.ASCII)
FLAGS: Final = (
    *("-std=gnu11", "-O2", "-g", "-fPIC", "-pthread", "-fvisibility=hidden"),
    *("-Wall", "-Wextra", "-Wno-unused-parameter"),
)
LINK_FLAGS: Final = ("-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,-Bsymbolic", "-ldl")


def symbol_table(symbols: Iterable[str], hooks: Iterable[str], driver: Iterable[str] = ()) -> str:
    """Return ``symbols.inc``: one macro call for each entry point of the driver, in order.

    Args:
        symbols: lines of ``cuda_symbols.txt``: exported name, base, CUDA version, suffix.
        hooks: names that the library defines itself.
        driver: names that the node's driver exports; those that `symbols` has not are passed on.

    Raises:
        ValueError: a hook is not an entry point.
    """
    hooked = set(hooks)
    rows = [line.split() for line in symbols if line.strip() and not line.startswith("#")]
    known = {row[0] for row in rows}
    unknown = hooked - known
    if unknown:
        raise ValueError(f"hooks that the driver does not export: {', '.join(sorted(unknown))}")
    rows += [
        [name, parts[1], str(UNKNOWN_VERSION), parts[3] or "-"]
        for name in sorted(set(driver) - known)
        if (parts := _ENTRY_POINT.fullmatch(name)) is not None
    ]
    lines = [
        f'GS_SYMBOL({index}, {name}, "{base}", {version}, {SUFFIXES[suffix]}, '
        f"{'HOOK' if name in hooked else 'FORWARD'})"
        for index, (name, base, version, suffix) in enumerate(rows)
    ]
    return "\n".join([*lines, ""])


def version_script(driver: Mapping[str, str]) -> str:
    """Return what gives the library's names the versions that the driver's have; "": none.

    A program that is linked with a version does not start with a library without versions.
    """
    names: dict[str, list[str]] = {}
    for name, version in sorted(driver.items()):
        if version and _ENTRY_POINT.fullmatch(name):
            names.setdefault(version, []).append(f" {name};")
    return "".join(f"{version} {{ global:{''.join(own)} }};\n" for version, own in names.items())


def sources(native: Path = NATIVE) -> Iterator[Path]:
    """Yield the files that the library is made of."""
    for path in sorted(native.iterdir()):
        if path.suffix in {".c", ".h", ".S", ".txt"}:
            yield path


def version_of(compiler: str) -> str:
    """Return what a compiler says of its version; empty: it says nothing.

    Raises:
        NativeBuildError: it cannot be run.
    """
    return _run([compiler, "--version"])


def digest(
    compiler: str,
    version: str,
    flags: Sequence[str],
    native: Path = NATIVE,
    *,
    driver: Mapping[str, str] | None = None,
) -> str:
    """Return what names a build: sources, the compiler, its flags, and the driver's entry points.

    The version is part of it, as an upgrade puts another compiler at the same path.
    """
    entry_points = repr(sorted((driver or {}).items()))
    return compiling.digest([compiler, version, *flags, entry_points], sources(native))


def build(
    cache: Path, compiler: str, *, driver: Path | None = None, extra_flags: Sequence[str] = ()
) -> Path:
    """Return the directory with the library and its alias; compile them if it is not there.

    Args:
        cache: directory for builds; every user must be able to read it.
        compiler: path of a C compiler.
        driver: the node's CUDA driver, of which no entry point may be missing; None: those of the
            CUDA version that gsched knows.
        extra_flags: more flags, such as those of a sanitizer.

    Raises:
        NativeBuildError: the compiler fails, with its first lines, or the driver has no symbols.
        OSError: the directory cannot be written, or the driver cannot be read.
    """
    flags = (*FLAGS, *extra_flags)
    version = version_of(compiler)
    functions = _entry_points(driver)
    name = digest(compiler, version, (*flags, *LINK_FLAGS), driver=functions)
    return compiling.kept(
        cache, name, lambda scratch, done: _compile(scratch, done, compiler, flags, functions)
    )


def _entry_points(driver: Path | None) -> dict[str, str]:
    """Return the functions of the driver, with their versions."""
    if driver is None:
        return {}
    try:
        return exported_functions(driver)
    except ValueError as error:
        raise NativeBuildError(
            f"the CUDA driver {driver} is not used: {error}",
            hint="name NVIDIA's libcuda.so.1 with driver in [gpu_share]",
        ) from error


def _compile(
    scratch: Path, done: Path, compiler: str, flags: Sequence[str], driver: Mapping[str, str]
) -> None:
    table = symbol_table(
        (NATIVE / "cuda_symbols.txt").read_text(encoding="ascii").splitlines(),
        (NATIVE / "hooks.txt").read_text(encoding="ascii").split(),
        driver,
    )
    (scratch / "symbols.inc").write_text(table, encoding="ascii")
    (scratch / "versions").write_text(version_script(driver), encoding="ascii")
    common = [compiler, *flags, f"-I{scratch}", f"-I{NATIVE}"]
    files = [str(path) for path in sources() if path.suffix in {".c", ".S"}]
    files = [path for path in files if Path(path).name not in _OWN]
    library = done / LIBRARY
    versions = [f"-Wl,--version-script={scratch / 'versions'}"] if any(driver.values()) else []
    linked = [*LINK_FLAGS, *versions, f"-Wl,-soname,{LIBRARY}"]
    _run([*common, *files, *linked, "-o", str(library)])
    alias = ["-Wl,--no-as-needed", str(library), f"-Wl,-soname,{ALIAS}", "-Wl,-rpath,$ORIGIN"]
    _run([*common, str(NATIVE / "alias.c"), "-shared", *alias, "-o", str(done / ALIAS)])


def _run(command: Sequence[str]) -> str:
    try:
        return compiling.run(command)
    except CompilerError as error:
        hint = "install a C compiler with its library headers (gcc and libc6-dev)"
        raise NativeBuildError(
            f"{command[0]} cannot compile the library for GPU sharing:"
            f"{chr(10) if error.refused else ' '}{error}",
            hint=hint if error.refused else "",
        ) from error


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
