"""Markers from the folder, Hypothesis profiles, no network where pure, no process left behind."""

import contextlib
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import gsched.cli.commands  # noqa: F401 - it switches garbage collection off
from tests.support import time_limits, timings
from tests.support.processes import (
    FORKS,
    MARKER,
    attempts,
    describe,
    kill_all,
    pids,
    processes_of,
)

gc.enable()  # as this process is no command, see `gsched.cli.commands`

_CPU_S = pytest.StashKey[float]()
_first_with_torch: list[str] = []
#: Of a parameter in a test's name, characters.
MAX_ID = 200
HERE = Path(__file__).resolve().parent

#: Seconds after which a test is stuck, where the test does not say it itself. They are no
#: measure of speed: a machine that does ten other things at once must pass, too.
TIMEOUTS_S = {"unit": 60, "contract": 120, "scenario": 120, "stateful": 240}
#: Seconds of a test whose file is not in seconds.json (`scripts/test_times.py --record`).
USUAL_S = {"system": 3.0, "interop": 3.0, "sim": 1.0, "cli": 0.5}
PROFILE = os.environ.get("GSCHED_TEST_PROFILE", "fast")
NIGHT_PATIENCE = 20  # times as long, for as many times as many examples
LEFT_BEHIND_TIMEOUT_S = 10.0  # a supervisor may need a moment after its attempt was reported

settings.register_profile(
    "fast", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,  # a red build can be repeated
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "night", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(PROFILE)

# What is imported and collected stays: no collection of garbage looks at it, neither while it is
# made nor in the tests (`pytest_collection_finish`).
gc.disable()

# Without bytecode each of the thousands of interpreters that tests start would compile gsched.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# aiohttp reads the certificates of the system at its import, for 0.1 s: no test needs them.
os.environ.setdefault("SSL_CERT_FILE", os.devnull)
# Threads for matrices of ten rows wait for each other, and compute while they wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
timings.open_account()  # before `tests.support.forks` looks in which control groups it is
# A shell ignores it for what runs in the background, and so would each command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Keep what each test takes, in the process that starts the workers, and what these share."""
    if hasattr(config, "workerinput"):
        return
    shared = tempfile.mkdtemp(prefix="gsched-forks-")
    os.environ[FORKS] = shared
    config.add_cleanup(functools.partial(shutil.rmtree, shared))
    if hasattr(config, "cache"):
        config.pluginmanager.register(timings.Timings(config.cache))


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the test files, each worker from another one on.

    Who imports a file first writes its bytecode. In a new checkout that takes ten seconds of CPU
    time: in one order, all workers would compile all files.
    """
    worker: dict[str, object] | None = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    names = _modules_below(session.config.args)
    first = int(str(worker["workerid"]).removeprefix("gw")) * len(names)
    first //= int(str(worker["workercount"]))
    for name in names[first:] + names[:first]:
        # What fails here fails again where pytest imports it, and that says why.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)
        _look_for_torch(name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a file that imports torch before its tests run: each worker would, for 1.5 s."""
    report = yield
    if isinstance(collector, pytest.Module) and collector.path.is_relative_to(HERE):
        name = _module_of(collector.path)
        _look_for_torch(name)
        if _first_with_torch == [name]:
            report.outcome = "failed"
            report.longrepr = f"{name} imports torch at once: see tests/support/late_torch.py"
    return report


def _look_for_torch(imported: str) -> None:
    """Keep the name of the file that was imported, if it has brought torch."""
    if "torch" in sys.modules and not _first_with_torch:
        _first_with_torch.append(imported)


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(HERE.parent).with_suffix("").parts)


def _modules_below(arguments: list[str]) -> list[str]:
    """Return the modules of the test files in what pytest was given."""
    given = [Path(argument.partition("::")[0]).resolve() for argument in arguments]
    found = {file for path in given for file in path.rglob("test_*.py")} | {
        path for path in given if path.is_file()
    }
    return [_module_of(path) for path in sorted(found) if path.is_relative_to(HERE)]


@functools.cache
def folder_of(path: Path) -> str:
    """Return the first folder below tests/ on the way to ``path``, which is a test's kind."""
    return path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""


@pytest.hookimpl(tryfirst=True)  # before a worker of pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its folder, and give it that folder's time-out if it has none."""
    known = {line.partition(":")[0] for line in config.getini("markers")}
    for item in items:
        folder = folder_of(item.path)
        if folder not in known:
            raise pytest.UsageError(
                f"{item.path}: tests live in a folder of tests/ that is a marker, not in {folder!r}"
            )
        item.add_marker(folder)
        if item.get_closest_marker("sweep") and not os.environ.get("GSCHED_TEST_SWEEPS"):
            item.add_marker(pytest.mark.skip(reason="one more of a sweep: GSCHED_TEST_SWEEPS=1"))
        if _shares_with_its_file(item) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        if folder in TIMEOUTS_S and item.get_closest_marker("timeout") is None:
            patience = NIGHT_PATIENCE if PROFILE == "night" else 1
            item.add_marker(pytest.mark.timeout(TIMEOUTS_S[folder] * patience))

    _put_longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Leave out of a test's time the waits for a processor: they are no sign that it is stuck."""
    is_set = yield
    if is_set:
        time_limits.leave_out_waits()
    return is_set


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported and collected alone from now on; it is part of no test's time."""
    session.stash[_CPU_S] = timings.cpu_s()
    gc.freeze()
    gc.enable()


def _shares_with_its_file(item: pytest.Item) -> bool:
    """Return whether a test uses what is made once for its file: it is made in one worker only."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    return any(each.scope == "module" for found in fixtures for each in found)


def _put_longest_first(items: list[pytest.Item]) -> None:
    """Sort what runs in one worker, or workers that have nothing left wait for the last one."""
    recorded = HERE / "seconds.json"
    by_file: dict[str, float] = json.loads(recorded.read_text()) if recorded.exists() else {}
    tests_of_file = Counter(item.path for item in items)
    seconds_of_test: dict[Path, float] = {}
    for path, tests in tests_of_file.items():
        usual_s = USUAL_S.get(folder_of(path), 0.0) * tests
        seconds_of_test[path] = by_file.get(path.relative_to(HERE).as_posix(), usual_s) / tests
    units = [_unit(item) for item in items]
    seconds: dict[str, float] = defaultdict(float)  # of a group, or of a test that has none
    for item, unit in zip(items, units, strict=True):
        seconds[unit] += seconds_of_test[item.path]
    by_length = sorted(zip(units, items, strict=True), key=lambda each: -seconds[each[0]])
    items[:] = [item for _, item in by_length]


def _unit(item: pytest.Item) -> str:
    group = item.get_closest_marker("xdist_group")
    return str(group.args[0]) if group else item.nodeid


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its size: a test's name is in the environment of all it starts."""
    if isinstance(val, str | bytes) and len(val) > MAX_ID:
        return f"{argname}-of-{len(val)}"
    return None


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In unit and scenario tests only Unix sockets connect: what is pure stays so."""
    if folder_of(request.path) not in {"unit", "scenario"}:
        return

    def guarded(real: object) -> object:
        def connect(self: socket.socket, address: object) -> object:
            if self.family != socket.AF_UNIX:
                raise AssertionError(f"this kind of test opens no network connection: {address}")
            return real(self, address)  # type: ignore[operator]  # one of two methods of socket

        return connect

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))


@pytest.fixture
def process_marker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what marks the processes of this test, through their environment."""
    marker = f"{request.node.name}-{uuid.uuid4().hex}"
    monkeypatch.setenv(MARKER, marker)
    return marker


@pytest.fixture(autouse=True)
def _nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a system or cli test none of its processes is there; what is, is killed and named."""
    if folder_of(request.path) not in {"system", "cli"}:
        yield
        return
    marker: str = request.getfixturevalue("process_marker")
    directory: Path = request.getfixturevalue("tmp_path")
    before = pids()
    yield

    left = processes_of(marker, directory, before)
    for _ in attempts(LEFT_BEHIND_TIMEOUT_S):
        if not left:
            return
        left = processes_of(marker, directory, before)
    names = describe(left)
    kill_all(lambda: processes_of(marker, directory))
    pytest.fail(f"this test left processes behind (killed now):\n{names}", pytrace=False)


@pytest.fixture
def cluster(tmp_path: Path, process_marker: str) -> Iterator[object]:
    """Return a `tests.support.cluster.Cluster` of which nothing is started yet."""
    # Imported here: it needs the client, and pure tests must run without it.
    from tests.support.cluster import Cluster

    made = Cluster(tmp_path / "cluster", process_marker)
    made.others = pids()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def warm_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Return the `tests.support.warm.WarmClusters` of this worker."""
    from tests.support.warm import WarmClusters

    made = WarmClusters(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


@pytest.fixture
def warm(warm_clusters: Any) -> Iterator[object]:
    """Return a `tests.support.warm.Lender`, of clusters that run already."""
    from tests.support.warm import Lender

    made = Lender(warm_clusters)
    yield made
    made.give_back()


@pytest.fixture(scope="session")
def forks() -> object:
    """Return a `tests.support.forks.ForkServer` that has imported torch."""
    from tests.support.forks import training_server

    return training_server()


_DIRECTORY = os.getcwd()


def _check_directory(report: pytest.TestReport) -> None:
    """Fail a test that leaves another working directory to the next ones of its worker."""
    now = os.getcwd()
    if now != _DIRECTORY:
        os.chdir(_DIRECTORY)
        report.outcome = "failed"
        report.longrepr = f"this test left the working directory {now} (was {_DIRECTORY})"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the daemons' logs with the report of a test that failed, and keep its CPU time."""
    report = yield
    if report.when == "teardown":
        now_s, before_s = timings.cpu_s(), item.session.stash[_CPU_S]
        item.session.stash[_CPU_S] = now_s
        report.user_properties.append((timings.CPU, now_s - before_s))
        _check_directory(report)
    if report.failed:
        made: Iterable[Any] = getattr(item, "funcargs", {}).values()
        for each in made:
            if hasattr(type(each), "logs"):
                for name, text in each.logs().items():
                    report.sections.append((f"log of the cluster: {name}", text))
    return report
