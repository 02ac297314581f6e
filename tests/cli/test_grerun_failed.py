"""grerun --failed on a real head and node: only what has failed runs again."""

import json
import sqlite3
from collections.abc import Callable, Iterator

import pytest

from gsched.client import HeadClient
from gsched.errors import NotPermittedError, UnknownJobError
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.in_process import run_here
from tests.support.users import User, Users, made_users

pytestmark = pytest.mark.timeout(180)

#: Elements fail while the file "broken" is there.
SCRIPT = """#!/bin/sh
echo $PBS_ARRAYID $PBS_ARRAY_ID $GSCHED_ARRAY_LINE $COLOUR >> ran
case $PBS_ARRAYID in 3|7|8) test ! -e broken;; esac
"""


class Desk:
    """A cluster with one node, and the commands on it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.jobs = cluster.jobs

    def run(self, name: str, *arguments: str) -> Ran:
        """Run a command where jobs work."""
        return run_command(name, *arguments, head=self.cluster.socket, cwd=self.jobs)

    def here(self, name: str, *arguments: str) -> Ran:
        """Run a command in this process."""
        return run_here(name, *arguments, head=self.cluster.socket)

    def submit(self, *arguments: str, script: str = SCRIPT) -> None:
        """Submit a script."""
        self.jobs.joinpath("a.sh").write_text(script, encoding="utf-8")
        ran = self.run("gsub", *arguments, "a.sh")
        assert ran.status == 0, ran

    def some_failed(self) -> None:
        """Run an array, job 1, of which elements 3, 7 and 8 fail; then nothing fails any more."""
        self.jobs.joinpath("broken").touch()
        self.jobs.joinpath("lines").write_text("\n".join("abcdefghij"), encoding="utf-8")
        self.submit("-t", "0-9", "--each-line", "lines", "-v", "COLOUR=red", "-A", "physics")
        assert self.run("gwait", "1[]").status == 1
        self.jobs.joinpath("broken").unlink()
        self.jobs.joinpath("ran").unlink()

    def ran(self) -> list[str]:
        """Return what has run since, sorted."""
        path = self.jobs / "ran"
        return sorted(path.read_text(encoding="utf-8").splitlines()) if path.exists() else []


@pytest.fixture
def desk(cluster: Cluster) -> Desk:
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    return Desk(cluster)


def test_only_the_failed_elements_run_again_with_their_indices(desk: Desk) -> None:
    """And with the script, the environment and the lines of the first time."""
    desk.some_failed()
    desk.jobs.joinpath("a.sh").write_text("#!/bin/sh\necho another script\n", encoding="utf-8")

    dry = desk.run("grerun", "--failed", "--dry-run", "1[]")
    assert dry.stdout == "3 failed elements of job 1[] would be submitted again: 3,7-8\n"
    assert (dry.status, dry.stderr) == (0, "")

    ran = desk.run("grerun", "--failed", "1[]")

    assert (ran.status, ran.stdout) == (0, "2[].test\n")
    assert ran.stderr == (
        "grerun: 3 failed elements of job 1[] were submitted again as 2[].test: 3,7-8\n"
    )
    assert desk.run("gwait", "2[]").status == 0
    assert desk.ran() == ["3 2[].test d red", "7 2[].test h red", "8 2[].test i red"]
    details = desk.run("gstat", "-f", "2[]").stdout
    assert "rerun_of = 1[]" in details
    assert "Account_Name = physics" in details
    assert "rerun_of = 1[3]" in desk.run("gstat", "-f", "2[3]").stdout

    nothing = desk.run("grerun", "--failed", "2[]")
    assert (nothing.status, nothing.stdout) == (1, "")
    assert nothing.stderr == ("grerun: no element of job 2[] has failed; nothing was submitted\n")


def test_indices_narrow_it_and_several_jobs_are_named(desk: Desk) -> None:
    """An element, a range, an ordinary job; an error of one does not keep the others."""
    desk.some_failed()
    desk.submit(script="#!/bin/sh\nexit 4\n")
    desk.submit(script="#!/bin/sh\n")
    assert desk.run("gwait", "2", "3").status == 4

    ran = desk.run("grerun", "--failed", "1[0-7:7,9]", "99", "1[8].test", "2", "3")

    assert (ran.status, ran.stdout) == (153, "4[].test\n5[].test\n6.test\n")
    assert ran.stderr.splitlines() == [
        "grerun: 1 failed element of job 1[0-7:7,9] was submitted again as 4[].test: 7",
        "grerun: 1 failed element of job 1[8].test was submitted again as 5[].test: 8",
        "grerun: failed job 2 was submitted again as 6.test",
        "grerun: job 3 has succeeded; nothing was submitted",
        "grerun: Unknown Job Id 99.test",
        "        hint: see gstat and ghist",
    ]
    assert desk.run("gwait", "4[]", "5[]", "6").status == 4
    assert desk.ran() == ["7 4[].test h red", "8 5[].test i red"]


def test_json_has_one_result_for_each_operand(desk: Desk) -> None:
    desk.some_failed()

    ran = desk.run("grerun", "--failed", "--json", "1[0-5]", "1[0-2]", "1[55]")

    assert ran.status == 153
    first, second, third = json.loads(ran.stdout)["results"]
    assert first == {
        "operand": "1[0-5]",
        "id": 2,
        "job_id": "2[].test",
        "elements": "3",
        "count": 1,
        "unfinished": 0,
        "nothing": "",
        "warnings": [],
        "error": None,
    }
    assert (second["id"], second["nothing"]) == (0, "no element of job 1[0-2] has failed")
    assert third["error"]["message"] == "job 1[] has no element 55"


def test_unfinished_elements_are_reported(desk: Desk) -> None:
    """They are no part of it; a deleted one has not failed."""
    script = (
        "#!/bin/sh\n"
        "case $PBS_ARRAYID in 0) exit 1;; 1) exit 0;; esac\n"
        "until test -e go; do sleep 0.1; done; exit 1\n"
    )
    desk.submit("-t", "0-9%4", script=script)

    def counts() -> tuple[int, int, int]:
        """Return how many elements have failed, have succeeded, and were deleted."""
        array = desk.cluster.head.jobs(["1[]"]).jobs[0].array
        assert array is not None
        return array.failed, array.succeeded, array.deleted

    wait_until(lambda: counts() == (1, 1, 0), what="two elements to end")
    assert desk.run("gdel", "-W", "0", "1[2]", "1[9]").status == 0
    wait_until(lambda: counts() == (1, 1, 2), what="the deletion of one that runs, and of another")

    ran = desk.run("grerun", "--failed", "--dry-run", "1[]")

    assert ran.stdout == "1 failed element of job 1[] would be submitted again: 0\n"
    assert ran.stderr == (
        "grerun: 6 elements of job 1[] have not finished; they are not part of this\n"
    )
    none = desk.run("grerun", "--failed", "1[1-3]")
    assert (none.status, none.stdout) == (1, "")
    assert none.stderr == (
        "grerun: no element of job 1[1-3] has failed so far; 1 has not finished; "
        "nothing was submitted\n"
    )
    desk.jobs.joinpath("go").touch()
    assert desk.run("gwait", "1[]").status == 1
    after = desk.run("grerun", "--failed", "--dry-run", "1[]")
    assert after.stdout.endswith("would be submitted again: 0,3-8\n")


WRONG = (
    (("-f", "1[]"), 2, "--failed and -f are mutually exclusive"),
    (("-m", "why", "1[]"), 2, "--failed and -m are mutually exclusive"),
    (("-W", "5", "1[]"), 2, "--failed and -W are mutually exclusive"),
    (("all",), 2, "--failed and all are mutually exclusive"),
    (("ALL",), 2, "--failed and all are mutually exclusive"),
    (("2[]",), 153, "job 2 is not an array"),
    (("7[]",), 153, "Unknown Job Id 7"),
    (("1[",), 153, "Unknown Job Id 1["),
    (("1[].other",), 153, "belongs to 'other'"),
    (("1-3",), 153, "ranges of job ids are not supported"),
    (("",), 153, "the job id is empty"),
    ((f"1[{','.join(map(str, range(0, 400, 2)))}]",), 156, "ids"),
    (("2",), 1, "job 2 has not finished; nothing was submitted"),
    (("3",), 1, "job 3 was cancelled: it has not failed; nothing was submitted"),
)


def test_mistakes_are_refused_in_words(cluster: Cluster) -> None:
    """Nothing is submitted for them."""
    cluster.start_head()
    desk = Desk(cluster)
    desk.submit("-t", "0-3")
    desk.submit()
    desk.submit()
    assert desk.run("gdel", "3").status == 0
    for arguments, status, words in WRONG:
        said = desk.here("grerun", "--failed", *arguments)
        assert said.status == status, said
        assert words in said.stderr, said
        assert said.stdout == ""
    assert len(cluster.head.jobs().jobs) == 2


KILLED = ("head.submit.before_commit", "head.submit.after_commit", "head.submit.after_ack")


@pytest.mark.parametrize("point", KILLED)
def test_a_head_that_is_killed_meanwhile_makes_one_new_array(desk: Desk, point: str) -> None:
    """The client sends the same key again, to the head that comes back."""
    desk.some_failed()
    desk.cluster.stop_head()
    desk.cluster.start_head(env={"GSCHED_FAIL": f"{point}:kill"})
    desk.cluster.wait_for_node("n1")
    head = HeadClient(str(desk.cluster.socket), patience_s=30.0)
    answers: list[int] = []

    def rerun() -> None:
        answers.append(head.rerun_failed("1[]", key="k").id)

    died = _in_thread(rerun)
    wait_until(lambda: desk.cluster.head_process.poll() is not None, what="the head to die")
    desk.cluster.start_head()
    died()

    assert answers == [2]
    assert head.rerun_failed("1[]", key="k").id == 2
    assert desk.run("gwait", "2[]").status == 0
    again = head.rerun_failed("1[]", key="k")
    assert (again.id, again.elements, again.count) == (2, "3,7-8", 3)
    assert [line.split()[0] for line in desk.ran()] == ["3", "7", "8"]
    assert len(head.history(ids="1,2,3", limit=10).jobs) == 2


def _in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Do some work in a thread; return what waits for its end."""
    from threading import Thread

    thread = Thread(target=work)
    thread.start()
    return lambda: thread.join(60)


def test_a_missing_script_is_reported(desk: Desk) -> None:
    desk.some_failed()
    desk.cluster.stop_head()
    db = sqlite3.connect(desk.cluster.state_dir / "gsched.db")
    db.execute("DELETE FROM blobs")
    db.commit()
    db.close()
    desk.cluster.start_head()

    ran = desk.run("grerun", "--failed", "1[]")

    assert (ran.status, ran.stdout) == (170, "")
    assert "the head does not have the script or environment of job 1[] any more" in ran.stderr
    assert "hint: submit the script again with gsub" in ran.stderr


def test_purged_elements_are_reported(desk: Desk) -> None:
    """What the history does not have any more cannot be submitted again."""
    desk.some_failed()
    desk.cluster.stop_head()
    db = sqlite3.connect(desk.cluster.state_dir / "gsched.db")
    db.execute("DELETE FROM jobs WHERE failed AND id % 1024 IN (3, 7)")
    db.commit()
    db.close()
    desk.cluster.start_head()

    ran = desk.run("grerun", "--failed", "--dry-run", "1[]")

    assert ran.stdout.endswith("would be submitted again: 8\n")
    assert ran.stderr == (
        "grerun: warning: 2 failed elements of job 1[] are not in the history any more\n"
    )


@pytest.fixture
def users(process_marker: str) -> Iterator[tuple[Cluster, Users]]:
    with made_users(Cluster, process_marker) as made:
        yield made


@pytest.mark.root
def test_another_user_is_refused_and_an_operator_acts_for_the_owner(
    users: tuple[Cluster, Users],
) -> None:
    """The new job is the owner's, and runs as the owner."""
    cluster, accounts = users
    alice, bob = accounts.add("alice"), accounts.add("bob")
    cluster.start_head()
    cluster.start_node("n1", cpus=4)
    script = accounts.home(alice) / "a.sh"
    script.write_text("#!/bin/sh\nid -un >> who\ntest $PBS_ARRAYID != 2\n", encoding="utf-8")
    accounts.submit(cluster, alice, "-t", "0-3", str(script))
    assert _as(users, alice, "gwait", "1[]").status == 1

    said = _as(users, bob, "grerun", "--failed", "1[]")
    assert (said.status, said.stdout) == (NotPermittedError.exit_code, "")
    assert "job 1 belongs to alice" in said.stderr
    assert _as(users, bob, "grerun", "--failed", "--dry-run", "1[2]").status == said.status
    assert _as(users, bob, "grerun", "--failed", "9").status == UnknownJobError.exit_code

    ran = run_command("grerun", "--failed", "1[]", head=cluster.socket)  # as root, an operator
    assert (ran.status, ran.stdout) == (0, "2[].test\n"), ran
    assert _as(users, alice, "gwait", "2[]").status == 1
    who = (accounts.home(alice) / "who").read_text(encoding="utf-8").split()
    assert who == ["alice"] * 5


def _as(users: tuple[Cluster, Users], user: User, name: str, *words: str) -> Ran:
    cluster, accounts = users
    return accounts.run(cluster, user, name, *words)
