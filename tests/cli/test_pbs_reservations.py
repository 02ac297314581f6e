"""pbs_rsub, pbs_ralter, pbs_rstat and pbs_rdel: what they create, print and refuse."""

import getpass

import pytest

from gsched.cli.pbs.personality import OPENPBS
from gsched.model.reservation import Reservation
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(120)
ME = getpass.getuser()
MONDAY = ("-R", "203001070800")
TIMES = (*MONDAY, "-D", "4:00:00")
GPUS = ("-l", "select=2:ncpus=1:ngpus=2")
TITLES = "Resv ID    Queue    User     State             Start / Duration / End              \n"


class Desk:
    """The commands of OpenPBS, on two nodes with two CPUs and four GPUs each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def run(self, *words: str) -> Ran:
        return run_here(*words, head=self.cluster.socket, personality=OPENPBS)

    def kept(self, name: str) -> Reservation:
        """Return a reservation as the head knows it."""
        rows = self.cluster.head.reservations().rows
        return next(row.reservation for row in rows if row.reservation.name == name)


@pytest.fixture
def desk(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Return a desk whose cluster is up."""
    cluster.start_head()
    for name in ("n1", "n2"):
        cluster.start_node(name, cpus=2, gpus=4)
    monkeypatch.setenv("PBS_TZID", "UTC")
    return Desk(cluster)


def test_reservations_are_created_listed_and_deleted(desk: Desk) -> None:
    """Of GPUs, whole nodes, named nodes, for maintenance, and recurring ones."""
    made = desk.run(
        "pbs_rsub", *TIMES, *GPUS, "-U", "+daemon@host,nobody", "-W", "delete_idle_time=600"
    )
    assert made == Ran(status=0, stdout="R1.test CONFIRMED\n", stderr="")
    kept = desk.kept("R1")
    assert (kept.gpus, kept.nodes, kept.to_s - kept.from_s) == (4, 0, 14400)
    assert (kept.users, kept.release_unused_s) == (
        tuple(dict.fromkeys((ME, "daemon", "nobody"))),
        600,
    )

    whole = ("-R", "203001080800", "-E", "0900", "-l", "select=2:ncpus=1,place=scatter:exclhost")
    assert desk.run("pbs_rsub", *whole, "-N", "both").stdout == "both.test CONFIRMED\n"
    assert (desk.kept("both").nodes, desk.kept("both").to_s - desk.kept("both").from_s) == (2, 3600)
    named = ("-E", "203001091200", "-l", "walltime=1:00:00,select=1:host=n2:ncpus=1")
    found = desk.run("pbs_rsub", *named)
    assert found == Ran(status=0, stdout="R2.test CONFIRMED\n", stderr="")
    assert desk.kept("R2").node_names == ("n2",)
    upkeep = ("-R", "203001100800", "-D", "3600", "--hosts", "n1", "n2")
    assert desk.run("pbs_rsub", *upkeep).stdout == "M1.test CONFIRMED\n"
    assert (desk.kept("M1").node_names, desk.kept("M1").maintenance) == (("n1", "n2"), True)
    rule = "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;COUNT=10"
    daily = ("-R", "203002040800", "-D", "3600", "-r", rule, "-m", "n", "-I", "5", "-q", "@test")
    standing = desk.run("pbs_rsub", *daily, *GPUS)
    assert standing.stdout == "S1.test CONFIRMED\n"
    assert "COUNT and UNTIL are ignored" in standing.stderr
    assert (desk.kept("S1").recur, desk.kept("S1").zone) == ("weekdays", "UTC")

    listed = desk.run("pbs_rstat").stdout
    assert listed.startswith(f"{TITLES}{'-' * 69}\n")
    whose = f"R1.test    R1       {ME[:8]:<8} CO    "
    assert f"{whose}Jan 07 2030 08:00 / 14400 / Jan 07 2030 12:00\n" in listed
    brief = desk.run("pbs_rstat", "-B", "R2,M1.test").stdout
    assert brief == "Resv ID: R2.test\nResv ID: M1.test\n"
    full = desk.run("pbs_rstat", "-f", "S1@test").stdout
    assert "reserve_state = RESV_CONFIRMED\n" in full
    assert "reserve_rrule = FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR\n" in full
    assert "Resource_List.ngpus = 4\n" in full

    gone = desk.run("pbs_rdel", "R1,nothing", "M1.test")
    assert (gone.status, gone.stdout) == (1, "")
    assert "Unknown Reservation Id nothing" in gone.stderr
    names = {row.reservation.name for row in desk.cluster.head.reservations().rows}
    assert names == {"both", "R2", "S1"}


def test_jobs_in_the_queue_of_a_reservation_run_in_it(desk: Desk) -> None:
    """As OpenPBS has a queue for each of them."""
    made = desk.run("pbs_rsub", "-R", "now", "-D", "3600", *GPUS)
    assert made.stdout == "R1.test CONFIRMED\n", made.stderr
    script = desk.cluster.jobs / "job.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    options = ("-q", "R1@test", "-l", "select=1:ngpus=1", "-o", "/dev/null", "-e", "/dev/null")
    submitted = desk.run("qsub", *options, str(script))
    assert submitted.status == 0, submitted.stderr
    (job,) = desk.cluster.head.jobs().jobs

    assert job.reservation == "R1"
    wait_until(lambda: desk.cluster.head.job(job.id).row.state == "running")
    assert " RN " in desk.run("pbs_rstat").stdout
    assert "unknown reservation 'R7'" in desk.run("qsub", "-q", "R7", str(script)).stderr


def test_a_job_is_moved_to_the_queue_of_a_reservation_and_back(desk: Desk) -> None:
    """With OpenPBS's command alone: to gmove R1 is a queue."""
    assert desk.run("pbs_rsub", *TIMES, *GPUS).status == 0
    script = desk.cluster.jobs / "job.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    assert desk.run("qsub", "-h", str(script)).status == 0
    (job,) = desk.cluster.head.jobs().jobs

    def reservation() -> str:
        return desk.cluster.head.job(job.id).row.reservation

    assert desk.run("qmove", "R1@test", str(job.id)).status == 0
    assert reservation() == "R1"
    assert desk.run("qmove", "R7", str(job.id)).status != 0
    assert desk.run("gmove", "R1", str(job.id)).status != 0
    assert reservation() == "R1"
    assert desk.run("qmove", job.queue, str(job.id)).status == 0
    assert reservation() == ""


def test_a_reservation_is_altered(desk: Desk) -> None:
    """Its times, of which the third follows from two, what it holds, and its users."""
    assert desk.run("pbs_rsub", *TIMES, *GPUS, "-U", "daemon").status == 0
    from_s, to_s = desk.kept("R1").from_s, desk.kept("R1").to_s

    def alter(*words: str) -> tuple[float, float]:
        ran = desk.run("pbs_ralter", *words, "R1.test")
        assert ran == Ran(status=0, stdout="pbs_ralter: R1.test ALTER REQUESTED\n", stderr="")
        kept = desk.kept("R1")
        return (kept.from_s - from_s, kept.to_s - to_s)

    assert alter("-R", "203001070900") == (3600, 0)
    assert alter("-E", "203001071300") == (3600, 3600)
    assert alter("-D", "2:00:00") == (3600, -3600)
    assert alter("-R", "203001070700", "-D", "3600") == (-3600, -4 * 3600)
    assert alter("-E", "203001071200", "-D", "4:00:00") == (0, 0)
    assert alter("-R", "203001072310", "-E", "2030-01-08 01:00")[0] > 0  # over midnight, as stated
    assert alter("-R", "203001070800", "-E", "1200") == (0, 0)
    assert alter("-l", "select=1:ngpus=3") == (0, 0)
    assert desk.kept("R1").gpus == 3
    assert alter("-U", "+nobody") == (0, 0)
    assert desk.kept("R1").users == tuple(dict.fromkeys((ME, "nobody")))
    waited = desk.run("pbs_ralter", "-I", "5", "-E", "203001071100", "R1")
    assert waited.stdout == "pbs_ralter: R1.test CONFIRMED\n"

    before = desk.kept("R1")
    for words, message in (
        (("R1",), "nothing is to be changed"),
        (("-D", "60"), "RESERVATION"),
        (("-D", "60", "R9"), "Unknown Reservation Id R9"),
        (("-D", "60", "-W", "force", "R1"), "-W force is not supported"),
        (("-N", "other", "R1"), "the name is the id"),
        (("-R", "0800", "-E", "0900", "-D", "60", "R1"), "two of them make the third"),
        (("-l", "walltime=60", "R1"), "only select= can be changed"),
        (("-E", "203001070700", "R1"), "not after its beginning"),
        (("-R", "203001072310", "-E", "2305", "R1"), "-E '2030-01-08 23:05' if that is meant"),
        (("-G", "staff", "R1"), "-G is not supported"),
        (("-D", "60", "-q", "@other", "R1"), "cannot connect to server @other"),
    ):
        refused = desk.run("pbs_ralter", *words)
        assert (refused.status != 0, refused.stdout) == (True, ""), words
        assert message in refused.stderr, (words, refused.stderr)
    assert desk.kept("R1") == before


MISTAKES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((*MONDAY, *GPUS), "two of -R, -E and -D are needed"),
    ((*TIMES, "-E", "1200", *GPUS), "two of -R, -E and -D are needed"),
    (("-R", "soon", "-D", "60", *GPUS), "-R: invalid date 'soon'"),
    ((*MONDAY, "-D", "soon", *GPUS), "-D: invalid time 'soon'"),
    ((*TIMES, "-l", "select=2:ncpus=2"), "CPUs and memory alone cannot be reserved"),
    (TIMES, "CPUs and memory alone cannot be reserved"),
    ((*TIMES, "-l", "select=1:ngpus=1:gpu_type=a+1:ngpus=1:gpu_type=b"), "of several types"),
    ((*TIMES, "-l", "select=2:host=n1"), "a chunk with host= stands for one node"),
    ((*TIMES, "-l", "select=1:nothing=1"), "nothing"),
    ((*TIMES, "-l", "select=9:ngpus=1,place=excl"), "9 nodes requested, and 2 of 2"),
    ((*TIMES, *GPUS, "-U", "-anna"), "users cannot be excluded: -anna"),
    ((*TIMES, *GPUS, "-G", "staff"), "-G is not supported"),
    ((*TIMES, *GPUS, "-H", "host"), "-H is not supported"),
    ((*TIMES, *GPUS, "-m", "x"), "-m: invalid events 'x'"),
    ((*TIMES, *GPUS, "-q", "other"), "cannot connect to server other"),
    ((*TIMES, *GPUS, "-W", "qmove=1"), "-W qmove is not supported"),
    ((*TIMES, *GPUS, "-I", "x"), "-I"),
    ((*TIMES, *GPUS, "-r", "FREQ=HOURLY;COUNT=2"), "gsched repeats a reservation each day"),
    ((*TIMES, *GPUS, "-r", "FREQ=WEEKLY;BYDAY=TU"), "gsched repeats a reservation each day"),
    ((*TIMES, *GPUS, "-r", "FREQ=DAILY;BYHOUR=9"), "BYHOUR is not supported"),
    ((*TIMES, *GPUS, "-r", "FREQ=DAILY;COUNT=x"), "invalid rule"),
    ((*TIMES, *GPUS, "extra"), "unexpected operand 'extra'"),
    ((*TIMES, *GPUS, "--hosts", "n1"), "--hosts cannot be combined with -l and -r"),
    (("-R", "202001010800", "-D", "60", *GPUS), "in the past"),
)


def test_a_mistake_is_a_sentence_and_nothing_is_created(desk: Desk) -> None:
    for words, message in MISTAKES:
        refused = desk.run("pbs_rsub", *words)
        assert refused.status != 0, words
        assert refused.stdout == "", words
        assert message in refused.stderr, (words, refused.stderr)
    assert desk.cluster.head.reservations().rows == ()
    assert desk.run("pbs_rstat").stdout == ""
