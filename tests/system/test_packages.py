"""The source distribution and the wheel, built and installed where nothing else of gsched is.

Without a network, as in `test_installation`: the build tools and dependencies are those that these
tests use themselves.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gsched.version import VERSION
from tests.support.processes import kill_all, processes_of
from tests.system.test_installation import OFFLINE, ROOT

TIMEOUT_S = 300.0

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)

BUILD = "import sys, setuptools.build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
#: What an administrator needs beside the packages.
IN_THE_SOURCES = ("Makefile", "LICENSE", "CHANGELOG.md", "man/gsub.1.rst", "etc/gsched.toml")
#: Of which gnode compiles the library for GPU sharing on a node.
NATIVE = "gnode/gpushare/native/"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the source distribution, and the wheel that is built from its contents."""
    made = tmp_path_factory.mktemp("packages")
    checkout = made / "checkout"  # building leaves files beside the sources
    names = [*_tracked()]
    for name in names:
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    sources = _build("build_sdist", checkout, made)
    shutil.unpack_archive(sources, made / "unpacked")
    [unpacked] = (made / "unpacked").iterdir()
    return sources, _build("build_wheel", unpacked, made)


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    left_out = ("tests/", "scripts/", "packages/", ".ci/")
    names = [name for name in listed.split("\0") if name and not name.startswith(left_out)]
    return [name for name in names if (ROOT / name).is_file()]


def _build(what: str, sources: Path, into: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(into)],
        cwd=sources,
        env=os.environ | OFFLINE,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return into / done.stdout.splitlines()[-1]


def test_the_packages_are_whole(built: tuple[Path, Path]) -> None:
    """Every module and every file that gnode compiles; of the sources also pages and units."""
    sources, wheel = built
    tracked = _tracked()
    modules = {name for name in tracked if name.split("/")[0] in ("gsched", "gschedd", "gnode")}
    with tarfile.open(sources) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        installed = set(packed.namelist())

    assert wheel.name == f"gsched-{VERSION}-py3-none-any.whl"
    assert any(name.startswith(NATIVE) for name in modules)
    assert modules - names == set()
    assert modules - installed == set()
    assert [name for name in IN_THE_SOURCES if name not in names] == []
    left_out = ("baselines/", "tests/", "scripts/")
    assert [name for name in installed if name.startswith(left_out)] == []


def test_man_formats_each_page_of_the_wheel_without_a_warning(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """With the command by which lintian judges a package."""
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("man or groff is not installed")
    with zipfile.ZipFile(built[1]) as packed:
        pages = [name for name in packed.namelist() if "/share/man/" in name]
        packed.extractall(tmp_path, pages)

    assert len(pages) == len(
        [name for name in _tracked() if re.fullmatch(r"man/.*\.\d\.rst", name)]
    )
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]
    for page in pages:
        done = subprocess.run(
            [*command, tmp_path / page],
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (page, done.returncode, done.stderr) == (page, 0, "")


def test_a_job_runs_on_an_installed_wheel(
    built: tuple[Path, Path], tmp_path: Path, process_marker: str
) -> None:
    """In a virtual environment of its own, away from the checkout."""
    environment = {
        **OFFLINE,
        **{name: value for name, value in os.environ.items() if name.startswith("GSCHED_TEST")},
        "PATH": f"{tmp_path}/venv/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
    }
    script = f"""
{sys.executable} -m venv --without-pip venv
{sys.executable} -m pip --python venv/bin/python install -q {built[1]}
venv/bin/python -c 'import gsched; print(gsched.__file__)'
eval "$(gsched up --dir {tmp_path}/cluster --nodes 1 --cpus 1)"
gsub --version
echo 'echo it ran' | gsub -N first --wait
cat first.o*
gsched down --dir {tmp_path}/cluster
"""
    try:
        done = subprocess.run(
            ["/bin/bash", "-ec", script],
            cwd=tmp_path,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    finally:
        kill_all(lambda: processes_of(process_marker, tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/venv/lib" in done.stdout
    assert VERSION in done.stdout
    assert "it ran\n" in done.stdout
