"""A user is deleted and the uid given to another one: real accounts, real daemons.

Head and node see a passwd of the test's own, by a mount of their own.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gsched.protocol import actions as a
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, command_environment
from tests.support.processes import MARKER

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become two users"),
]

ROOT = Path(__file__).resolve().parents[2]
UID = 1777
IN_OWN_VIEW = 'mount --make-rprivate / && mount --bind "$PASSWD" /etc/passwd && exec "$@"'


class Accounts(Cluster):
    """A cluster whose daemons see this passwd."""

    passwd: Path

    def know(self, user: str) -> None:
        """Have one ordinary user, who has the uid."""
        root = "root:x:0:0::/root:/bin/sh\n"
        self.passwd.write_text(f"{root}{user}:x:{UID}:{UID}::{self.jobs}:/bin/sh\n")

    def _spawn(
        self, module: str, config: Path, log: str, env: Mapping[str, str] | None
    ) -> "subprocess.Popen[bytes]":
        own = {"PASSWD": str(self.passwd), MARKER: self._marker}
        with open(self.directory / log, "ab") as stream:
            return subprocess.Popen(
                [
                    *("unshare", "--mount", "/bin/sh", "-c", IN_OWN_VIEW, "sh"),
                    *(sys.executable, "-m", module, "--config", str(config)),
                ],
                cwd=ROOT,
                env={**os.environ, **own, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )


@pytest.fixture
def site(process_marker: str) -> Iterator[Accounts]:
    can = ["unshare", "--mount", "mount", "--make-rprivate", "/"]
    if subprocess.run(can, capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    top = Path(tempfile.mkdtemp(prefix="gsched-users-"))
    top.chmod(0o755)
    made = Accounts(top / "c", process_marker)
    made.passwd = top / "passwd"
    made.head_settings["single_user"] = False
    os.chown(made.jobs, UID, UID)
    yield made
    made.stop()
    shutil.rmtree(top)


def command(site: Accounts, *arguments: str, typed: str = "") -> Ran:
    """Run a command as the user with that uid."""
    done = subprocess.run(
        [sys.executable, "-m", f"gsched.cli.commands.{arguments[0]}", *arguments[1:]],
        env=command_environment(site.socket, PYTHONPATH=str(ROOT)),
        cwd=site.jobs,
        input=typed,
        user=UID,
        group=UID,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def test_t25_d19_what_a_deleted_user_has_left(site: Accounts) -> None:
    site.know("alice")
    site.start_head()
    site.start_node("n1", cpus=2)
    for name in ("running", "held"):
        hold = ("-h",) if name == "held" else ()
        script = f"echo secret of {name}; test {name} = held || sleep 300\n"
        ran = command(site, "gsub", "-N", name, *hold, "-o", f"{name}.out", typed=script)
        assert ran.status == 0, ran.stderr
    wait_until((site.jobs / "running.out").exists, what="the first job's output")

    site.know("mallory")
    site.kill_head()
    site.start_head()
    site.wait_for_node("n1")

    for arguments in (
        *(("gdel", "1"), ("grls", "2"), ("ghold", "1"), ("gsig", "-s", "INT", "1")),
        *(("galter", "-N", "mine", "2"), ("grerun", "1"), ("gpeek", "1")),
    ):
        ran = command(site, *arguments)
        assert ran.status != 0, arguments
        assert "belongs to alice, who had uid 1777 before you (mallory)" in ran.stderr, arguments
        assert "secret" not in ran.stdout
    rows = {str(row.name): row for row in site.head.jobs(["1", "2"]).jobs}
    assert (rows["running"].state, rows["held"].state) == ("running", "held")

    # An operator lets the deleted user's job go: it is not run as whoever has the number now.
    asked = a.ReleaseJob(ids=("2",), holds=("user",))
    assert site.head.act(asked).results[0].error is None

    def is_shown() -> bool:  # between two tries, each of which has another state and reason
        (row,) = site.head.jobs(["2"]).jobs
        return row.state in {"queued", "waiting", "held"} and "no user alice" in row.reason

    wait_until(is_shown, what="the reason why the job does not run")
    assert not (site.jobs / "held.out").exists()
    assert not site.head.nodes().nodes[0].drained

    ran = command(site, "gsub", "-N", "own", "-o", "own.out", "--wait", typed="id -u\n")
    assert ran.status == 0, ran.stderr
    assert (site.jobs / "own.out").read_text() == f"{UID}\n"
