"""By every way in which programs reach the CUDA driver they reach the library first."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gnode.gpushare.build import NATIVE, build, symbol_table
from tests.support.gpu_device import SharedGpu
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler, shared_gpu

__all__ = ["fake_driver", "library_cache", "shared_gpu"]
pytestmark = needs_compiler

SUPPORT = Path(__file__).resolve().parents[1] / "support"
LOOKUPS = SUPPORT / "cudart_lookups.txt"
SYMBOLS = NATIVE / "cuda_symbols.txt"
HOOKS = frozenset((NATIVE / "hooks.txt").read_text().split())
RUNTIMES = ("11.8", "12.1", "12.4", "12.8", "13.0")
PER_THREAD = 2
Make = Callable[..., SharedGpu]

#: Exported name, base, version, and whether it is of per-thread streams.
TABLE = [
    (name, base, int(version), suffix != "-")
    for name, base, version, suffix in (
        line.split() for line in SYMBOLS.read_text().splitlines() if not line.startswith("#")
    )
]

BY_SYMBOL = {base: [row for row in TABLE if row[1] == base] for base in {row[1] for row in TABLE}}


def compiler() -> str:
    """Return the C compiler."""
    found = find_compiler()
    assert found is not None
    return found


@pytest.fixture
def library(library_cache: Path, fake_driver: Path) -> Path:
    """Return the directory of the library."""
    return build(library_cache, compiler(), driver=fake_driver)


@pytest.fixture
def preloaded(library: Path, fake_driver: Path) -> dict[str, str]:
    """Return the environment of a process that loads the library, and shares nothing."""
    return {
        **os.environ,
        "LD_PRELOAD": f"{library / 'libcuda.so.1'}:{library / 'libcuda.so'}",
        "GSCHED_REAL_LIBCUDA": str(fake_driver),
    }


def look_up(lines: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return whose function each look-up has found."""
    ran = subprocess.run(
        [sys.executable, str(SUPPORT / "gpu_lookup.py"), str(SYMBOLS)],
        input="\n".join(lines) + "\n",
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def expected(symbol: str, version: int, flags: int) -> str:
    """Return whose function the newest prototype is that is not newer than the version."""
    if symbol == "cuGraphInstantiate" and version >= 12000:
        symbol = "cuGraphInstantiateWithFlags"
    rows = [row for row in BY_SYMBOL.get(symbol, ()) if row[2] <= version]
    own = [row for row in rows if row[3] == bool(flags & PER_THREAD)]
    plain = [row for row in rows if not row[3]]
    best = max(own or plain, key=lambda row: row[2], default=None)
    if best is None:
        return "none"
    return f"{'hook' if best[0] in HOOKS else 'driver'} {best[0]}"


def test_every_version_of_every_entry_point_is_found_exactly(preloaded: dict[str, str]) -> None:
    """At its own version, just before the next one, and with both kinds of default streams."""
    wanted = {
        (base, version + late, flags)
        for _, base, version, _ in TABLE
        for late in (0, 9)
        for flags in (0, PER_THREAD)
    }
    lookups = [("v2", *one) for one in sorted(wanted)] + [("v1", *one) for one in sorted(wanted)]
    found = look_up([" ".join(map(str, one)) for one in lookups], preloaded)

    wrong = [
        (one, answer, expected(*one[1:]))
        for one, answer in zip(lookups, found, strict=True)
        if answer != expected(*one[1:])
    ]
    assert wrong == []


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_what_a_cuda_runtime_looks_up_is_hooked(runtime: str, preloaded: dict[str, str]) -> None:
    """As recorded: 383 to 440 look-ups before its first call, one of them of an empty name."""
    rows = [line.split() for line in LOOKUPS.read_text().splitlines() if not line.startswith("#")]
    own = [
        (symbol, int(version), int(flags))
        for symbol, version, flags, runtimes in rows
        if runtime in runtimes.split(",")
    ]
    call = "v1" if runtime == "11.8" else "v2"
    found = look_up(
        [f"{call} {symbol} {version} {flags}" for symbol, version, flags in own], preloaded
    )

    assert found == ["none" if one[0] == "-" else expected(*one) for one in own]
    hooked = {answer.removeprefix("hook ") for answer in found if answer.startswith("hook")}
    assert hooked >= {
        *("cuMemAlloc_v2", "cuMemGetInfo_v2", "cuLaunchKernel", "cuLaunchKernel_ptsz"),
        *("cuGraphLaunch", "cuMemAllocAsync", "cuDeviceTotalMem_v2"),
    }


def test_a_function_that_the_driver_exports_under_no_name_is_found_by_version(
    preloaded: dict[str, str],
) -> None:
    lines = ["v2 cuMemAlloc 3020 0", "v2 cuLaunchKernel 7000 2", "v2 cuCtxSetLimit 3010 0"]

    assert look_up(lines, {**preloaded, "GSCHED_FAKE_HIDDEN": "1"}) == [
        "hook cuMemAlloc_v2",
        "hook cuLaunchKernel_ptsz",
        "driver ?",
    ]


def test_a_prototype_newer_than_the_table_stays_the_drivers_and_is_said(
    preloaded: dict[str, str],
) -> None:
    """A hook of an older prototype would spoil the stack."""
    environment = {**preloaded, "GSCHED_FAKE_NEWER": "1", "GSCHED_FAKE_VERSION": "14000"}
    ran = subprocess.run(
        [sys.executable, str(SUPPORT / "gpu_lookup.py"), str(SYMBOLS)],
        input="v2 cuMemAlloc 14000 0\nv2 cuMemAlloc 13000 0\n",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.splitlines() == ["driver ?", "hook cuMemAlloc_v2"]
    assert "cuMemAlloc of CUDA 14000 is newer than gsched" in ran.stderr


def test_the_library_exports_all_entry_points_and_nothing_else(library: Path) -> None:
    """Neither dlsym nor any name of its own."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library / "libcuda.so.1")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")

    assert {line.split()[-1] for line in listed if line} == {row[0] for row in TABLE}


def test_without_a_driver_there_is_no_device_and_nothing_breaks(preloaded: dict[str, str]) -> None:
    code = (
        "import ctypes; api = ctypes.CDLL('libcuda.so.1'); "
        "print(api.cuInit(0), api.cuCtxSynchronize(), api.cuCtxSetLimit(0, 0))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**preloaded, "GSCHED_REAL_LIBCUDA": "/nowhere/libcuda.so.1"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == ["100", "100", "100"]


def test_a_driver_that_looks_itself_up_while_it_is_loaded_is_loaded(
    preloaded: dict[str, str],
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"],
        env={**preloaded, "GSCHED_FAKE_SELF_LOOKUP": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (ran.returncode, ran.stdout.strip()) == (0, "0")


PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
typedef unsigned long long pointer;
#ifdef LINKED
extern int cuInit(unsigned int), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(pointer *, size_t);
#define FIND(name) name
#else
#define FIND(name) ((int (*)())dlsym(library, #name))
#endif
int main(int count, char **arguments) {
    void *context = NULL, *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    pointer made;
    (void)library;
    FIND(cuInit)(0);
    FIND(cuDevicePrimaryCtxRetain)(&context, 0);
    FIND(cuCtxSetCurrent)(context);
    printf("%d\\n", FIND(cuMemAlloc_v2)(&made, (size_t)2 << 30));
    return 0;
}
"""


@pytest.mark.parametrize(
    ("flags", "argument", "with_driver_path"),
    [
        (("-DLINKED", "-Wl,--enable-new-dtags"), "", False),
        (("-DLINKED", "-Wl,--disable-new-dtags"), "", False),
        (("-DLINKED", "-Wl,--enable-new-dtags"), "", True),
        ((), "libcuda.so.1", False),
        ((), "libcuda.so.1", True),
        ((), "libcuda.so", False),
    ],
    ids=["linked", "rpath", "linked-path", "dlopen", "dlopen-path", "short-name"],
)
def test_programs_in_c_are_limited(
    flags: tuple[str, ...],
    argument: str,
    with_driver_path: bool,  # noqa: FBT001 - a parameter of the test
    shared_gpu: Make,
    fake_driver: Path,
    tmp_path: Path,
) -> None:
    """Linked with the driver's directory in RUNPATH or RPATH, or opened by either name."""
    gpu = shared_gpu()
    environment = gpu.admit(gpu.task("1", memory_bytes=1 << 30))
    if with_driver_path:
        path = f"{environment['LD_LIBRARY_PATH']}:{fake_driver.parent}"
        environment = {**environment, "LD_LIBRARY_PATH": path}
    source, program = tmp_path / "client.c", tmp_path / "client"
    source.write_text(PROGRAM)
    linked = [str(fake_driver), f"-Wl,-rpath,{fake_driver.parent}"] if "-DLINKED" in flags else []
    command = [compiler(), "-w", str(source), "-o", str(program), *flags, *linked, "-ldl"]
    subprocess.run(command, check=True)

    ran = subprocess.run(
        [str(program), *([argument] if argument else [])],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() == "2", "2 GiB were given to a job with a limit of 1 GiB"


def test_ctypes_finds_the_library_by_both_names_and_after_exec(shared_gpu: Make) -> None:
    gpu = shared_gpu()
    task = gpu.task("1", memory_bytes=64 << 20)
    for name in ("libcuda.so.1", "libcuda.so"):
        assert gpu.run(task, library=name).call("cuda.alloc('plain', 65 << 20)[0]") == 2
    job = gpu.run(task)
    code = (
        "import ctypes; print(ctypes.CDLL('libcuda.so').cuInit(0), open('/proc/self/maps').read())"
    )
    child = job.call(
        f"__import__('subprocess').run([{sys.executable!r}, '-c', {code!r}], "
        "capture_output=True, text=True).stdout"
    )
    assert child.startswith("0")
    assert str(gpu.library.resolve()) in child


WHEELS = os.environ.get("GSCHED_TEST_CUDA_RUNTIMES", "")


@pytest.mark.skipif(not WHEELS, reason="no CUDA runtimes: GSCHED_TEST_CUDA_RUNTIMES=DIR")
def test_real_cuda_runtimes_look_up_what_was_recorded(
    preloaded: dict[str, str], tmp_path: Path
) -> None:
    """The record is complete, and no real runtime crashes in the library."""
    rows = [line.split() for line in LOOKUPS.read_text().splitlines() if not line.startswith("#")]
    for runtime in RUNTIMES:
        found = next(Path(WHEELS, runtime).rglob("libcudart.so*"))
        trace = tmp_path / runtime
        code = f"import ctypes; ctypes.CDLL({str(found)!r}).cudaFree(None)"
        environment = {**preloaded, "GSCHED_FAKE_TRACE": str(trace)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        looked_up = {tuple(line.split()[1:]) for line in trace.read_text().splitlines()}
        recorded = {tuple(row[:3]) for row in rows if runtime in row[3].split(",")}
        assert looked_up == recorded, runtime


@pytest.mark.skipif(not WHEELS, reason="no CUDA runtimes: GSCHED_TEST_CUDA_RUNTIMES=DIR")
def test_a_runtime_that_is_linked_statically_is_hooked(
    preloaded: dict[str, str], tmp_path: Path
) -> None:
    """As in programs of nvcc, and in cuBLAS, cuDNN and NCCL."""
    archive = next(Path(WHEELS, "13.0").rglob("libcudart_static.a"))
    source, program, trace = tmp_path / "a.c", tmp_path / "a", tmp_path / "trace"
    source.write_text("extern int cudaFree(void *); int main(void) { cudaFree(0); return 0; }")
    libraries = ["-ldl", "-lpthread", "-lrt", "-lm"]
    subprocess.run(
        [compiler(), str(source), str(archive), *libraries, "-o", str(program)], check=True
    )
    subprocess.run([str(program)], env={**preloaded, "GSCHED_FAKE_TRACE": str(trace)}, check=True)

    assert "v2 cuMemAlloc 3020 0" in trace.read_text()


CUDA_H = os.environ.get("GSCHED_TEST_CUDA_INCLUDE", "")


@pytest.mark.skipif(not CUDA_H, reason="no cuda.h of CUDA 13.0: GSCHED_TEST_CUDA_INCLUDE=DIR")
def test_prototypes_of_all_hooks_are_nvidias(tmp_path: Path) -> None:
    """The compiler compares each definition with the declaration in cuda.h."""
    (tmp_path / "symbols.inc").write_text(
        symbol_table(SYMBOLS.read_text().splitlines(), sorted(HOOKS))
    )
    for source in sorted(NATIVE.glob("*.c")):
        command = [compiler(), "-std=gnu11", "-fsyntax-only", "-DGS_HAVE_CUDA_H", "-w"]
        command += [f"-I{CUDA_H}", f"-I{tmp_path}", f"-I{NATIVE}", str(source)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[:2000]
