"""qstat: each option and each format, as the C sources of Torque and OpenPBS print them."""

import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.protocol import api, job_rows
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve
from tests.support.in_process import run_here

EXITED_3 = {"kind": "exited", "exit_status": 3, "shell_status": 3, "exit_code": 3, "node": "n2"}
PARTS = (
    job_rows.PartRow(node="n1", state="running", cpus=2, gpu_indices=(0,), pid=4711),
    job_rows.PartRow(node="n2", state="running", cpus=1),
)
TORQUE_TITLES = (
    "Job ID                    Name             User            Time Use S Queue\n"
    "------------------------- ---------------- --------------- -------- - -----\n"
)
OPENPBS_TITLES = (
    "Job id            Name             User              Time Use S Queue\n"
    "----------------  ---------------- ----------------  -------- - -----\n"
)
#: The formats of the C sources, which Python's % understands, too.
TORQUE_SHORT = "%-25s %-16s %-15s %8s %1s %-15s\n"
TORQUE_LONG = "%-23.22s %-11.11s %-8.8s %-16.16s %6.6s %5.5s %6.6s %9.9s %9.9s %1.1s %9.9s\n"
OPENPBS_SHORT = "%-17s %-16s %-16s  %8s %1s %-16s\n"
OPENPBS_LONG = "%-15.15s %-8.8s %-8.8s %-10.10s %6.6s %3.3s %3.3s %6.6s %5.5s %1.1s %5.5s\n"
OPENPBS_WIDE = "%-30.30s %-15.15s %-15.15s %-15.15s %8.8s %4.4s %5.5s %6.6s %5.5s %1s %s"
OPENPBS_LIMIT = "%-16.16s %6.6s %8.8s %8.8s %4.4s %5d %5d %4.4s   %c %c\n"
NONE = " -- "
ROW_1 = TORQUE_SHORT % ("1.fake", "train", "alice", "0", "Q", "batch")
ROW_2 = TORQUE_SHORT % ("2.fake", "...e.block-0.179", "bob", "00:01:12", "R", "batch")
ROW_4 = TORQUE_SHORT % ("4.fake", "held", "alice", "0", "H", "long")
LONG_TITLES = (
    "\nfake: \n"
    "                                                                                  "
    "Req'd       Req'd       Elap\n"
    "Job ID                  Username    Queue    Jobname          SessID  NDS   TSK   "
    "Memory      Time    S   Time\n"
    "----------------------- ----------- -------- ---------------- ------ ----- ------ "
    "--------- --------- - ---------\n"
)
LONG_1 = TORQUE_LONG % (
    "1.fake", "alice", "batch", "train", NONE, "1", "1", NONE, NONE, "Q", NONE
)  # fmt: skip
LONG_2 = TORQUE_LONG % (
    "2.fake", "bob", "batch", "parsl.e.block-0.179", "4711", "2", "3", "4gb", "01:00:00", "R",
    "00:01:01",
)  # fmt: skip
LONG_4 = TORQUE_LONG % (
    "4.fake", "alice", "long", "held", NONE, "1", "1", NONE, NONE, "H", NONE
)  # fmt: skip


@pytest.fixture
def fake(tmp_path: Path) -> FakeApi:
    """Return a head with a job that waits, one that runs, one that is done and one on hold."""
    fake = FakeApi(tmp_path)
    fake.queues["long"] = api.QueueRow(name="long", max_walltime_s=86400.0, started=False)
    fake.add(make_row(1, reason="needs 2 GPUs", predicted_start_s=NOW_S + 3600))
    fake.add(
        make_row(
            2, name="parsl.e.block-0.179", user="bob", state="running", letter="R", reason="",
            attempt=1, gpus=1, cpus=3, places=2, started_s=NOW_S - 61, cpu_s=72.4,
            nodes=("n1", "n2"), walltime_s=3600.0, memory_bytes=4 * 1024**3, wall_s=61.0,
        ),
        attempts=(
            job_rows.AttemptRow(attempt=1, state="running", assigned_s=NOW_S - 62, parts=PARTS),
        ),
        submit_host="login.site", submit_dir="/data/sub",
        resources="nodes=n1:ppn=2+n2:ppn=1,mem=4gb,walltime=01:00:00",
    )  # fmt: skip
    fake.add(
        make_row(
            3, name="old", state="done", letter="C", reason="", started_s=NOW_S - 50,
            ended_s=NOW_S - 10, outcome=EXITED_3, attempt=1,
        )
    )  # fmt: skip
    fake.add(make_row(4, name="held", queue="long", state="held", letter="H"), holds=("user",))
    return fake


@pytest.fixture
def head(fake: FakeApi, tmp_path: Path) -> Iterator[Path]:
    """Return the socket of that head."""
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], TORQUE_TITLES + ROW_1 + ROW_2 + ROW_4),
        (["2", "1"], TORQUE_TITLES + ROW_2 + ROW_1),  # in the order of the operands
        (["2", "-t", "-l", "-e"], TORQUE_TITLES + ROW_2),  # options after operands
        (["long"], TORQUE_TITLES + ROW_4),
        (["batch@fake"], TORQUE_TITLES + ROW_1 + ROW_2),
        (["@fake"], TORQUE_TITLES + ROW_1 + ROW_2 + ROW_4),
        (["-c"], TORQUE_TITLES + ROW_1 + ROW_2 + ROW_4),
        (["-a"], LONG_TITLES + LONG_1 + LONG_2 + LONG_4),
        (["-i"], LONG_TITLES + LONG_1 + LONG_4),
        (["-r"], LONG_TITLES + LONG_2),
        (["-u", "bob,carol"], LONG_TITLES + LONG_2),
        (["-u", "bob@login"], LONG_TITLES + LONG_2),
        (["-Wubob"], LONG_TITLES + LONG_2),
        (["-W", "r"], LONG_TITLES + LONG_2),
        (["-n", "2"], LONG_TITLES + LONG_2 + "   n1/0+n1/1+n2/0\n"),
        (["-n1", "2"], LONG_TITLES + LONG_2[:-1] + "   n1/0+n1/1+n2/0\n"),
        (["-s", "1"], LONG_TITLES + LONG_1 + "   needs 2 GPUs\n"),
        (["-M", "2"], LONG_TITLES + LONG_2.replace("  4gb", "512mw")),
        (["-G", "2"], LONG_TITLES + LONG_2),
        (["-J"], ""),
        (["-E", "ignored", "1"], TORQUE_TITLES + ROW_1),  # Torque's -E has a value
    ],
)
def test_torques_lists_are_those_of_its_source(
    head: Path, arguments: list[str], expected: str
) -> None:
    ran = run_here("qstat", *arguments, head=head)

    assert ran.stdout == expected
    assert (ran.status, ran.stderr) == (0, "")


OPENPBS_LONG_TITLES = (
    "\nfake: \n"
    "                                                            Req'd  Req'd   Elap\n"
    "Job ID          Username Queue    Jobname    SessID NDS TSK Memory Time  S Time\n"
    "--------------- -------- -------- ---------- ------ --- --- ------ ----- - -----\n"
)
OPENPBS_2 = OPENPBS_LONG % (
    "2.fake", "bob", "batch", "parsl.e.block-0.179", "4711", "2", "3", "4096mb", "01:00:00", "R",
    "00:01:01",
)  # fmt: skip


def openpbs_row(*cells: str) -> str:
    return OPENPBS_LONG % (*cells[:4], NONE, "1", "1", NONE, NONE, *cells[4:])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["2"],
            OPENPBS_TITLES
            + OPENPBS_SHORT % ("2.fake", "parsl.e.block-0", "bob", "00:01:12", "R", "batch"),
        ),
        (
            ["-x", "3"],
            OPENPBS_TITLES + OPENPBS_SHORT % ("3.fake", "old", "alice", "00:00:00", "F", "batch"),
        ),
        (
            ["-p", "2"],
            OPENPBS_TITLES.replace(" Time Use", "  % done ")
            + OPENPBS_SHORT % ("2.fake", "parsl.e.block-0", "bob", "  1 ", "R", "batch"),
        ),
        (["-a", "2"], OPENPBS_LONG_TITLES + OPENPBS_2),
        (["-n", "-1", "2"], OPENPBS_LONG_TITLES + OPENPBS_2[:-1] + "    n1/0+n1/1+n2/0\n"),
        (
            ["-H"],
            OPENPBS_LONG_TITLES + openpbs_row("3.fake", "alice", "batch", "old", "F", "00:00:40"),
        ),
        (
            ["-T", "1"],
            "\nfake: \n"
            "                                                                           Est\n"
            "                                                            Req'd  Req'd   Start\n"
            + OPENPBS_LONG_TITLES.split("Elap\n")[1]
            + openpbs_row("1.fake", "alice", "batch", "train", "Q", "01:00:00"),
        ),
    ],
)
def test_openpbs_lists_are_those_of_its_source(
    head: Path, arguments: list[str], expected: str
) -> None:
    ran = run_here("qstat", *arguments, head=head, personality="openpbs")

    assert ran.stdout == expected
    assert (ran.status, ran.stderr) == (0, "")


def test_wide_columns_show_whole_names(head: Path) -> None:
    ran = run_here("qstat", "-aw", "2", head=head, personality="openpbs")

    line = ran.stdout.splitlines()[-1]
    assert line == OPENPBS_WIDE % (
        "2.fake", "bob", "batch", "parsl.e.block-0.179",
        "4711", "2", "3", "4096mb", "01:00:00", "R",
        "00:01:01",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("personality", "status", "stderr"),
    [
        ("torque", 153, "qstat: Unknown Job Id Error 99\n"),
        ("openpbs", 153, "qstat: Unknown Job Id 99\n"),
    ],
)
def test_unknown_ids_are_told_and_the_others_shown(
    head: Path, personality: str, status: int, stderr: str
) -> None:
    ran = run_here("qstat", "1", "99", "2", head=head, personality=personality)

    assert [line.split()[0] for line in ran.stdout.splitlines()[2:]] == ["1.fake", "2.fake"]
    assert (ran.status, ran.stderr) == (status, stderr)


def test_a_finished_job_is_shown_by_its_id_and_openpbs_wants_x(head: Path) -> None:
    torque = run_here("qstat", "3", head=head)
    openpbs = run_here("qstat", "3", head=head, personality="openpbs")

    assert torque.stdout.splitlines()[2].split()[4] == "C"
    assert (openpbs.status, openpbs.stdout) == (35, "")
    assert openpbs.stderr == (
        "qstat: 3.fake Job has finished, use -x or -H to obtain historical job information\n"
    )


def test_all_attributes_are_written_as_prt_attr_writes_them(head: Path) -> None:
    ran = run_here("qstat", "-f", "2", head=head)

    lines = ran.stdout.splitlines()
    assert lines[0] == "Job Id: 2.fake"
    assert lines[-1] == "", "a blank line after each job"
    assert ran.stdout.endswith("    init_work_dir = /data\n\n")
    for line in (
        "    Job_Name = parsl.e.block-0.179",
        "    Job_Owner = bob@login.site",
        "    resources_used.cput = 00:01:12",
        "    resources_used.walltime = 00:01:01",
        "    job_state = R",
        "    session_id = 4711",
        "    substate = 42",
        "    Walltime.Remaining = 3539",
        "    exec_host = n1/0+n1/1+n2/0",
        "    exec_gpus = n1-gpu/0",
        "    Resource_List.nodect = 2",
        "    Resource_List.walltime = 01:00:00",
        "    Resource_List.mem = 4gb",
        f"    qtime = {time.ctime(NOW_S - 100)}",
        "    Variable_List = PBS_O_QUEUE=batch,PBS_O_LOGNAME=bob,PBS_O_WORKDIR=/data/sub,",
        "\tPBS_O_HOST=login.site,PBS_O_SERVER=fake",
    ):
        assert line in lines, line


def test_a_finished_job_has_its_exit_status_under_each_name(head: Path) -> None:
    torque = run_here("qstat", "-f", "3", head=head).stdout
    openpbs = run_here("qstat", "-xf", "3", head=head, personality="openpbs").stdout

    assert "    exit_status = 3\n" in torque
    assert "    job_state = C\n" in torque
    assert "    Exit_status = 3\n" in openpbs
    assert "    job_state = F\n" in openpbs


def test_lines_are_not_broken_when_asked(head: Path) -> None:
    ran = run_here("qstat", "-f", "-1", "2", head=head)

    assert "\t" not in ran.stdout
    assert "PBS_O_LOGNAME=bob,PBS_O_WORKDIR=/data/sub," in ran.stdout


def test_torques_x_is_xml_that_batchspawner_reads(head: Path) -> None:
    ran = run_here("qstat", "-x", "2", head=head)

    first, document = ran.stdout.splitlines()
    assert first == '<?xml version="1.0"?>'
    job = ET.fromstring(document).find("Job")
    assert job is not None
    assert job.findtext("Job_Id") == "2.fake"
    assert job.findtext("job_state") == "R"
    assert job.findtext("exec_host") == "n1/0+n1/1+n2/0"
    assert job.findtext("Resource_List/walltime") == "01:00:00"
    assert job.findtext("qtime") == str(int(NOW_S - 100)), "moments are numbers in XML"


def test_x_alone_without_jobs_is_an_empty_document(head: Path, fake: FakeApi) -> None:
    fake.stories.clear()

    assert run_here("qstat", "-x", head=head).stdout == '<?xml version="1.0"?>\n<Data></Data>\n'
    assert run_here("qstat", head=head).stdout == ""


@pytest.mark.parametrize("personality", ["torque", "openpbs"])
def test_json_is_openpbs_document_with_finished_jobs_behind_x(head: Path, personality: str) -> None:
    ran = run_here("qstat", "-x", "-f", "-F", "json", "2", "3", head=head, personality=personality)

    document = json.loads(ran.stdout)
    assert document["timestamp"] == int(NOW_S)
    assert document["pbs_server"] == "fake"
    jobs = document["Jobs"]
    assert jobs["3.fake"]["job_state"] == "F"
    assert jobs["3.fake"]["Exit_status"] == 3
    assert jobs["2.fake"]["Resource_List"] == {
        "ncpus": 3, "ngpus": 1, "nodect": 2, "nodes": "n1:ppn=2+n2:ppn=1", "mem": "4gb",
        "walltime": "01:00:00",
    }  # fmt: skip
    assert jobs["2.fake"]["Variable_List"]["PBS_O_WORKDIR"] == "/data/sub"
    assert jobs["2.fake"]["Priority"] == 0


def test_dsv_has_a_line_for_each_job_and_escapes_its_delimiter(head: Path, fake: FakeApi) -> None:
    fake.change(1, name="a|b")

    lines = run_here("qstat", "-f", "-F", "dsv", "1", "4", head=head).stdout.splitlines()
    other = run_here("qstat", "-f", "-F", "dsv", "-D", ";;", "1", head=head).stdout

    assert lines[0].startswith("Job Id: 1.fake|Job_Name=a\\|b|Job_Owner=")
    assert lines[1].startswith("Job Id: 4.fake|")
    assert other.startswith("Job Id: 1.fake;;Job_Name=a|b;;")


SERVERS = (
    "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext   Com Status    \n"
    "----------------   ---   ---   ---   ---   ---   ---   ---   ---   --- ----------\n"
    "fake                 0     3     1     1     1     0     0     0     0 Active    \n"
)
TORQUE_LIMIT = "%-16.16s %6.6s %8.8s %8.8s %5.5s %3d %3d %2.2s   %c %c\n"
QUEUES = (
    "Queue              Max    Tot   Ena   Str   Que   Run   Hld   Wat   Trn   Ext T   Cpt\n"
    "----------------   ---   ----    --    --   ---   ---   ---   ---   ---   --- -   ---\n"
)
BATCH = "batch                0      2   yes   yes     1     1     0     0     0     0 E     0\n"
LONG = "long                 0      1   yes    no     0     0     1     0     0     0 E     0\n"
LIMITS = (
    "\nserver: fake\n\n"
    "Queue            Memory CPU Time Walltime Node  Run Que Lm  State\n"
    "---------------- ------ -------- -------- ----  --- --- --  -----\n"
)


@pytest.mark.parametrize(
    ("arguments", "personality", "expected"),
    [
        (["-Q"], "torque", QUEUES + BATCH + LONG),
        (["-Q", "long"], "torque", QUEUES + LONG),
        (["-Q", "@fake"], "torque", QUEUES + BATCH + LONG),
        (
            ["-Q", "batch"],
            "openpbs",
            (
                "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
                "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
                "batch                0     2 yes yes     1     1     0     0     0     0 Exec\n"
            ),
        ),
        (
            ["-q"],
            "torque",
            LIMITS
            + TORQUE_LIMIT % ("batch", "--  ", "--   ", "--   ", "-- ", 1, 1, "--   ", "E", "R")
            + TORQUE_LIMIT % ("long", "--  ", "--   ", "24:00:00", "-- ", 0, 1, "--   ", "E", "S")
            + "                                               ----- -----\n"
            + "                                                   1     2\n",
        ),
        (
            ["-q", "batch"],
            "openpbs",
            "\nserver: fake\n\n"
            "Queue            Memory CPU Time Walltime Node   Run   Que   Lm  State\n"
            "---------------- ------ -------- -------- ---- ----- ----- ----  -----\n"
            + OPENPBS_LIMIT
            % ("batch", "--  ", "  --   ", "  --   ", "-- ", 1, 1, "  --   ", "E", "R")
            + "                                               ----- -----\n"
            "                                                   1     1\n",
        ),
        (
            ["-B"],
            "torque",
            SERVERS,
        ),
        (
            ["-B", "fake"],
            "openpbs",
            (
                "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
                "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n"
                "fake                 0     3     1     1     1     0     0     0 Active    \n"
            ),
        ),
    ],
)
def test_queues_and_the_server(
    head: Path, arguments: list[str], personality: str, expected: str
) -> None:
    ran = run_here("qstat", *arguments, head=head, personality=personality)

    assert ran.stdout == expected
    assert (ran.status, ran.stderr) == (0, "")


def test_queues_and_the_server_with_all_attributes(head: Path) -> None:
    queue = run_here("qstat", "-Qf", "long", head=head).stdout
    server = run_here("qstat", "-Bf", head=head).stdout

    assert queue.startswith("Queue: long\n    queue_type = Execution\n")
    assert "    resources_max.walltime = 24:00:00\n" in queue
    assert queue.endswith("    started = False\n\n")
    assert server.startswith("Server: fake\n    server_state = Active\n")
    assert "    default_queue = batch\n" in server


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-a", "-r"], 2, "conflicting options."),
        (["-G", "-M"], 2, "conflicting options."),
        (["-q", "-f"], 2, "conflicting options."),
        (["-Q", "-a"], 2, "conflicting options."),
        (["-1"], 2, "conflicting options."),
        (["-F", "yaml"], 2, "unknown format 'yaml'"),
        (["-W", "z"], 2, "unknown letter 'z'"),
        (["nowhere"], 172, "Unknown queue"),
        (["@elsewhere"], 2, "cannot connect to server elsewhere"),
        (["-Q", "nowhere"], 172, "Unknown queue"),
        (["-B", "elsewhere"], 1, "Unknown server elsewhere"),
        (["-y"], 2, "unknown option '-y'"),
    ],
)
def test_what_qstat_refuses(head: Path, arguments: list[str], status: int, words: str) -> None:
    ran = run_here("qstat", *arguments, head=head)

    assert ran.status == status
    assert ran.stderr.startswith("qstat: ")
    assert words in ran.stderr
    assert ran.stdout == ""
