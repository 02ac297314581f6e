"""What tests/conftest.py guarantees: a test that breaks a rule fails, and says which."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with our conftest and no tests."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests/support").mkdir(parents=True)
    shutil.copy(ROOT / "tests/conftest.py", tmp_path / "tests")
    for name in ("processes.py", "time_limits.py", "timings.py"):
        shutil.copy(ROOT / "tests/support" / name, tmp_path / "tests/support")
    return tmp_path


def run_tests(
    project: Path, folder: str, code: str, *options: str, profile: str = "fast"
) -> subprocess.CompletedProcess[str]:
    """Run one file of tests in a project's folder.

    Its temporary files are the project's: other runs on this machine do not race for them.
    """
    outer = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    (project / "tests" / folder).mkdir(exist_ok=True)
    (project / "tests" / folder / "test_it.py").write_text(code, encoding="utf-8")
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]
    quiet.append(f"--basetemp={project / 'temporary'}")
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, *options, "tests"],
            cwd=project,
            env=outer | {"GSCHED_TEST_PROFILE": profile},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the tests did not end in 100 s: {error.stdout!r} {error.stderr!r}")


CONNECTS = """
import socket
def test_connects():
    with socket.socket(socket.{family}) as one:
        try:
            one.connect({address})
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    ("folder", "family", "address", "passes"),
    [
        ("unit", "AF_INET", '("127.0.0.1", 9)', False),
        ("scenario", "AF_INET6", '("::1", 9)', False),
        ("unit", "AF_UNIX", '"/nowhere"', True),
        ("contract", "AF_INET", '("127.0.0.1", 9)', True),
    ],
)
def test_pure_tests_open_no_network_connection(
    project: Path, folder: str, family: str, address: str, *, passes: bool
) -> None:
    """Unix sockets and other kinds of tests are free."""
    done = run_tests(project, folder, CONNECTS.format(family=family, address=address))

    assert (done.returncode == 0) is passes, done.stdout
    assert ("opens no network connection" in done.stdout) is not passes


def test_a_test_that_leaves_another_working_directory_fails_and_no_later_one(project: Path) -> None:
    code = "import os\ndef test_a(): os.chdir('/')\ndef test_b(): assert os.path.isdir('tests')\n"
    done = run_tests(project, "unit", code)

    assert "ERROR at teardown of test_a" in done.stdout
    assert f"this test left the working directory / (was {project})" in done.stdout
    assert "2 passed, 1 error" in done.stdout


LEAVES = """
import subprocess, sys
def test_leaves(tmp_path):
    code = "import os, subprocess; print(subprocess.Popen(['sleep', '77'], {how}).pid)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    open({pids!r}, "w").write(done.stdout)
"""


@pytest.mark.parametrize(
    "how",
    [
        "start_new_session=True, stdout=-3, stderr=-3",
        "env={{}}, start_new_session=True, stdout=-3, stderr=-3",
        "cwd='/', start_new_session=True, stdout=-3, stderr=-3",
    ],
    ids=["orphan", "orphan without its environment", "orphan elsewhere"],
)
def test_process_left_behind_fails_the_test_and_is_killed(project: Path, how: str) -> None:
    """Known by what it inherited, or by where it works, though its parent is gone."""
    pids = project / "pids"
    code = LEAVES.format(how=how.replace("{{", "{").replace("}}", "}"), pids=str(pids))
    done = run_tests(project, "system", code)

    assert done.returncode == 1, done.stdout
    assert "left processes behind" in done.stdout
    assert "sleep 77" in done.stdout
    pid = int(pids.read_text())
    with contextlib.suppress(psutil.NoSuchProcess):  # init has taken it away, at any moment
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_test_outside_a_known_folder_is_refused(project: Path) -> None:
    """Its kind decides its rules, so it must have one."""
    done = run_tests(project, "various", "def test_it(): pass\n")

    assert done.returncode != 0
    assert "folder of tests/ that is a marker" in done.stdout + done.stderr


GROUPED = """
import os
import pytest

{before}
@pytest.mark.parametrize("number", range(8))
def test_it({fixtures}number):
    print("worker", os.environ["PYTEST_XDIST_WORKER"])
"""
SHARED = """
@pytest.fixture(scope="module")
def costly():
    pass
"""


@pytest.mark.parametrize(
    ("before", "fixtures"),
    [('@pytest.mark.xdist_group("one")', ""), (SHARED, "costly, ")],
    ids=["by a mark", "by a fixture of the module"],
)
def test_a_group_runs_in_one_worker(project: Path, before: str, fixtures: str) -> None:
    """Its tests share what is costly; a pytest that pytest-xdist does not know ignores groups."""
    code = GROUPED.format(before=before, fixtures=fixtures)
    ran = run_tests(project, "unit", code, "-n2", "--dist=loadgroup", "-rP")

    assert ran.returncode == 0, ran.stdout
    workers = [line for line in ran.stdout.splitlines() if line.startswith("worker ")]
    assert len(workers) == 8
    assert len(set(workers)) == 1


PATIENCE = """
from hypothesis import HealthCheck, settings

def test_it(request):
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    print("seconds", request.node.get_closest_marker("timeout").args[0])
"""


@pytest.mark.parametrize(("profile", "seconds"), [("fast", 240), ("ci", 240), ("night", 4800)])
def test_more_examples_have_more_time(project: Path, profile: str, seconds: int) -> None:
    """And a busy machine, on which examples are made slowly, is none of the code's faults."""
    ran = run_tests(project, "stateful", PATIENCE, "-rP", profile=profile)

    assert ran.returncode == 0, ran.stdout
    assert f"seconds {seconds}\n" in ran.stdout


CROWDED = """
import os, subprocess, sys, time
import pytest

@pytest.mark.timeout(0.5)
def test_computes():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    begun_s, until_s = time.monotonic(), time.process_time() + 0.3
    try:
        while time.process_time() < until_s:
            pass
        assert time.monotonic() - begun_s > 0.5
    finally:
        for each in others:
            each.kill()
            each.wait()

@pytest.mark.timeout(0.5)
def test_is_stuck():
    time.sleep(30)
"""


def test_a_time_limit_counts_no_wait_for_a_processor(project: Path) -> None:
    """Beside three programs that compute on the only processor that it may use."""
    ran = run_tests(project, "unit", CROWDED)

    assert "1 failed, 1 passed" in ran.stdout, ran.stdout
    assert "test_is_stuck - Failed: Timeout (>0.5s)" in ran.stdout


def test_a_file_that_cannot_be_imported_is_reported_by_workers_too(project: Path) -> None:
    """They import all files before pytest does, and say nothing of what fails."""
    done = run_tests(project, "unit", "import nowhere_at_all\n", "-n", "2")

    assert done.returncode != 0, done.stdout
    assert "No module named 'nowhere_at_all'" in done.stdout


@pytest.mark.parametrize("options", [(), ("-n1",)], ids=["alone", "by a worker"])
def test_a_file_that_imports_torch_at_once_is_refused(
    project: Path, options: tuple[str, ...]
) -> None:
    (project / "torch.py").touch()
    done = run_tests(project, "unit", "import torch\ndef test_it(): pass\n", *options)

    assert done.returncode != 0, done.stdout
    assert "tests.unit.test_it imports torch at once" in done.stdout


def test_collection_imports_no_torch() -> None:
    """Pytest looks for attributes of all that a file has; workers would import it six times."""
    late_torch = pytest.importorskip("tests.support.late_torch")
    of_no_module = type(late_torch.torch)("nowhere_at_all")

    assert not hasattr(of_no_module, "__bases__")
    assert not hasattr(of_no_module, "__test__")
    with pytest.raises(ModuleNotFoundError):
        of_no_module.zeros  # noqa: B018  # its use is the import
