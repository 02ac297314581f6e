"""A head with a job in each state, and the commands of Slurm run against it in this process."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

from gsched.cli.dialect import GSCHED, speak
from gsched.cli.slurm.commands import run_slurm
from gsched.protocol import job_rows
from tests.support.canned_head import node
from tests.support.commands import Ran
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve

OK = {"kind": "exited", "exit_status": 0, "shell_status": 0, "exit_code": 0}
BAD = {"kind": "exited", "exit_status": 3, "shell_status": 3, "exit_code": 3}
OVER = {"kind": "walltime", "exit_status": -11, "shell_status": 143, "signal": 15}


def row(job: int, **changes: object) -> job_rows.JobRow:
    """Return a job; with an outcome one that has ended."""
    done: dict[str, object] = {"state": "done", "letter": "C", "reason": ""}
    return make_row(job, **(done | changes if "outcome" in changes else changes))


@contextlib.contextmanager
def slurm_head(directory: Path) -> Iterator[FakeApi]:
    """Yield a head with a job in each state, at the socket ``s`` of the directory."""
    fake = FakeApi(directory)
    fake.add(row(1))
    fake.add(
        row(2, name="run", user="bob", state="running", letter="R", nodes=("n1",), reason="",
            started_s=NOW_S - 3661, wall_s=3661.0, walltime_s=90000.0, cpus=4)
    )  # fmt: skip
    fake.add(row(3, outcome=OK, nodes=("n1",), started_s=NOW_S - 50, ended_s=NOW_S, wall_s=50.0))
    fake.add(row(4, outcome=BAD))
    fake.add(row(5, outcome=OVER))
    fake.add(row(6, state="held", letter="H", reason="waits for its dependencies: afterok:2"))
    fake.nodes = [node("n1", jobs=(2,)), node("n2"), node("n3", state="unreachable")]
    with serve(fake.application(), directory / "s"):
        yield fake


def slurm(name: str, *arguments: str) -> Ran:
    """Run a command of Slurm."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_slurm(name, arguments)
    finally:
        speak(GSCHED)
    return Ran(status=status, stdout=out.getvalue(), stderr=err.getvalue())
