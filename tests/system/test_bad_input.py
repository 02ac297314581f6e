"""What users get wrong, and what they are told: real commands, head and node, end to end.

Each test holds one message: it says what was asked, what is so and what to do, on stderr only,
with the exit code that programs rely on.
"""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.counter import Counter, open_counter

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def counter() -> Iterator[Counter]:
    with open_counter() as made:
        yield made


@pytest.fixture(scope="module")
def running(counter: Counter) -> str:
    """Return a job that runs, with a walltime, and may not be rerun."""
    job = counter.submit("-r", "n", "-l", "walltime=1:00:00", "--", "sleep", "600")
    wait_until(lambda: counter.row(job).started_s, what="the job's start")
    return job


@pytest.fixture(scope="module")
def held(counter: Counter) -> str:
    """Return a job that waits because its user holds it."""
    return counter.submit("-h", "--", "true")


@pytest.fixture(scope="module")
def done(counter: Counter) -> str:
    """Return a job that has ended."""
    job = counter.submit("--", "true")
    counter.ended(job)
    return job


def refused(ran: Ran, status: int, *words: str) -> None:
    """Check that a command refused in words, not with a traceback, and printed no data."""
    assert (ran.status, ran.stdout) == (status, ""), ran
    assert "Traceback" not in ran.stderr
    for each in words:
        assert each in ran.stderr, ran.stderr


# --- options and their values ---


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        ("gsub", ["--waltime", "60", "--", "true"], ["--waltime", "--walltime"]),
        ("gstat", ["--jsn"], ["--jsn", "--json"]),
        ("gnodes", ["--resaon", "x", "drain", "n1"], ["--resaon", "--reason"]),
        ("gsched", ["dwon"], ["unknown subcommand 'dwon'", "did you mean 'down'?"]),
    ],
)
def test_an_unknown_option_or_command_is_met_with_the_one_meant(
    counter: Counter, command: str, arguments: list[str], words: list[str]
) -> None:
    refused(counter.run(command, *arguments), 2, *words)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["-p", "2000"], 2, ["-p", "2000", "-1024", "1023"]),
        (["-p", "high"], 2, ["-p", "'high' is not a valid number"]),
        (["-q", "nope"], 172, ["unknown queue 'nope'", "queues here: batch"]),
        (["-a", "2599"], 2, ["-a: invalid date '2599'", "[[[[CC]YY]MM]DD]hhmm"]),
        (["-a", "202602300800"], 2, ["-a: invalid date '202602300800'"]),
        (["-W", "foo=bar"], 2, ["-W: unknown attribute 'foo'", "umask=MASK"]),
        (["-W", "umask=999"], 2, ["umask=999", "'999' is not an octal mask"]),
        (["-W", "depend=afterok:1"], 208, ["afterok:1: Unknown Job Id 1", "gstat"]),
        (["--dependency", "afterfoo:1"], 208, ["unknown dependency type 'afterfoo'", "afternotok"]),
        (["-t", "3-1"], 2, ["-t", "the range 3-1 is reversed", "write 1-3"]),
        (["-I"], 2, ["-I", "interactive", "needs a terminal"]),
        (["-j", "xx"], 2, ["-j: invalid value 'xx'"]),
        (["-m", "zz"], 2, ["-m: invalid mail points 'zz'", "a (abort)"]),
        (["-r", "maybe"], 2, ["-r: invalid value 'maybe'"]),
        (["-N", "a b"], 2, ["-N: invalid job name 'a b'", "without blanks"]),
        (["-S", "nosuchshell"], 2, ["-S: shell 'nosuchshell' is not on your PATH"]),
        (["-v", "=3"], 2, ["-v: '=3' has no variable name", "NAME=VALUE"]),
        (["-u", "nosuchuser"], 67, ["-u: unknown user 'nosuchuser'"]),
        (["-d", "nowhere"], 2, ["-d: directory", "nowhere does not exist", "mkdir -p"]),
        (["--grace", "soon"], 2, ["--grace: invalid time 'soon'"]),
    ],
)
def test_a_bad_value_of_gsub_is_named_with_its_option(
    counter: Counter, arguments: list[str], status: int, words: list[str]
) -> None:
    refused(counter.run("gsub", *arguments, "--", "true"), status, *words)


def test_an_error_is_json_where_json_is_asked_for(counter: Counter) -> None:
    ran = counter.run("gsub", "--json", "-q", "nope", "--", "true")

    assert (ran.status, ran.stdout) == (172, "")
    error = json.loads(ran.stderr)["error"]
    assert error["code"] == "unknown_queue"
    assert "nope" in error["message"]
    assert "batch" in error["hint"]


# --- resources ---


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("gpu=1", ["unknown resource 'gpu'", "did you mean 'gpus'?"]),
        ("licence=1", ["unknown resource 'licence'", "valid resources: gpu_share, gpus, mem"]),
        ("nodes=1:pnp=2", ["unknown node attribute 'pnp'", "did you mean 'ppn'?"]),
        ("nodes=1:ppn", ["nodes=1:ppn: ppn has no value"]),
        ("nodes=1:ppn=x", ["ppn=x: must be a whole number"]),
        ("nodes=0", ["nodes=0: must be at least 1"]),
        (
            "nodes=2,procs=4",
            ["nodes= cannot be combined with ncpus= or procs=", "nodes=N:ppn=CPUS"],
        ),
        ("nodes=1:gpus=1,gpus=1", ["GPUs are requested twice"]),
        ("select=1:foo=2", ["unknown chunk attribute 'foo=2'", "select=N:ncpus=C"]),
        ("place=weird", ["place=weird", "valid: free, pack, scatter, excl"]),
        ("mem=12zz", ["mem=12zz: invalid size '12zz'", "4gb"]),
        ("walltime", ["walltime has no value", "walltime=VALUE"]),
        ("walltime=soon", ["walltime=soon: invalid time 'soon'", "HH:"]),
        ("walltime=0", ["walltime=0", "greater than zero"]),
        ("walltime=-5", ["walltime=-5", "greater than zero"]),
        ("walltime=-1:00:00", ["walltime must be greater than zero, got -01:00:00"]),
        ("walltime=+1:00:00", ["change an existing walltime", "without a sign"]),
    ],
)
def test_a_malformed_resource_list_is_named_by_its_term(
    counter: Counter, resources: str, words: list[str]
) -> None:
    refused(counter.run("gsub", "-l", resources, "--", "true"), 2, *words)


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ("nodes=1:ppn=9", ["needs 9 CPUs", "largest is n1 with 2 CPUs", "nodes=N"]),
        ("nodes=1:gpus=3", ["needs 3 GPUs", "largest is n1 with 2 CPUs, 1 GPU"]),
        ("mem=900gb", ["needs 900gb memory", "largest is n1 with 2 CPUs, 8gb memory"]),
        ("nodes=5", ["needs 5 nodes", "there are only 1", "at most 1"]),
        ("nodes=1:a100", ["no node is named a100", "nodes and features here: declared, n1"]),
        ("nodes=1:gpus=1:gpu_type=h100", ["1 GPU (h100)", "GPU types here: declared"]),
    ],
)
def test_what_no_node_could_ever_hold_is_refused_by_the_term_that_fails(
    counter: Counter, resources: str, words: list[str]
) -> None:
    refused(counter.run("gsub", "-l", resources, "--", "true"), 2, *words)


def test_a_walltime_below_what_has_elapsed_is_in_the_past(counter: Counter, running: str) -> None:
    started_s = counter.row(running).started_s
    assert started_s is not None
    wait_until(lambda: counter.cluster.head.status().now_s > started_s + 1.1, what="a second")
    ran = counter.run("galter", "-l", "walltime=1", running)

    refused(ran, 156, "a walltime of 00:00:01 lies in the past", f"job {running} has run for")
    assert counter.row(running).walltime_s == 3600.0


def test_a_running_job_cannot_get_other_nodes(counter: Counter, running: str) -> None:
    refused(counter.run("galter", "-l", "nodes=1:ppn=2", running), 170, "only walltime can change")


# --- scripts ---


def test_a_missing_script_says_where_it_was_looked_for(counter: Counter) -> None:
    ran = counter.run("gsub", "nosuch.sh")

    refused(ran, 66, "script 'nosuch.sh' does not exist", str(counter.work), "gsub -- COMMAND")


def test_a_directory_is_no_script(counter: Counter) -> None:
    refused(counter.run("gsub", "."), 66, "script '.' is a directory")


def test_an_unreadable_script_says_which_permission_is_missing(counter: Counter) -> None:
    name = counter.script("secret.sh", b"#!/bin/sh\ntrue\n")
    (counter.work / name).chmod(0)
    run = counter.run if os.getuid() else counter.run_as_other
    ran = run("gsub", name)

    refused(ran, 66, "'secret.sh' cannot be read: permission denied", "read permission")


def test_a_binary_is_no_script_and_gets_the_way_to_run_it(counter: Counter) -> None:
    name = counter.script("program", b"\x7fELF\x02\x01\0\0\0")

    ran = counter.run("gsub", name)

    refused(ran, 65, "program is binary: it contains a zero byte at offset 6", "gsub -- ./program")


def test_an_empty_script_is_refused(counter: Counter) -> None:
    name = counter.script("empty.sh", b"\n  \n")

    refused(counter.run("gsub", name), 65, "empty.sh is empty", "at least one command")


def test_nothing_on_stdin_is_refused(counter: Counter) -> None:
    refused(counter.run("gsub"), 65, "STDIN is empty")


def test_a_script_with_dos_line_ends_runs_and_its_user_is_told(counter: Counter) -> None:
    """Its interpreter would not be found otherwise, and the last word would end in CR."""
    name = counter.script("dos.sh", b"#!/bin/sh\r\n#PBS -N fromdos -j oe\r\nprintf '%s|' a b\r\n")
    ran = counter.run("gsub", "--wait", name)

    assert ran.status == 0, ran
    assert "dos.sh has DOS line ends (CR LF): changed to LF" in ran.stderr
    number = ran.stdout.partition(".")[0]
    assert (counter.work / f"fromdos.o{number}").read_bytes() == b"a|b|"


def test_a_bad_directive_is_named_by_file_and_line(counter: Counter) -> None:
    name = counter.script("bad.sh", b"#!/bin/sh\n\n#PBS -p 5000\ntrue\n")

    refused(counter.run("gsub", name), 65, "bad.sh:3: ", "5000")


def test_a_shell_that_is_not_on_the_node_ends_the_job_in_words(counter: Counter) -> None:
    name = counter.script("shell.sh", b"true\n")
    story = counter.ended(counter.submit("-S", "/nonexistent/sh", name))

    assert story.row.outcome is not None
    assert story.row.outcome.kind == "launch_failed"
    assert "/nonexistent/sh" in story.row.outcome.message
    assert "No such file" in story.row.outcome.message


# --- output ---


def test_a_missing_output_directory_is_refused_at_once(counter: Counter) -> None:
    ran = counter.run("gsub", "-o", "none/here/", "--", "true")

    directory = counter.work / "none/here"
    refused(
        ran, 73, f"-o: the output directory {directory} does not exist", f"mkdir -p {directory}"
    )


def test_an_output_directory_that_is_not_the_users_is_refused_at_once(counter: Counter) -> None:
    closed = counter.work / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    run = counter.run if os.getuid() else counter.run_as_other
    ran = run("gsub", "-o", "/dev/null", "-e", f"{closed}/", "--", "true")

    refused(ran, 73, f"-e: no permission to create files in the output directory {closed}")


def test_an_output_directory_that_becomes_a_file_ends_the_job_in_words(counter: Counter) -> None:
    """At submission all was well; the node says why it could not start the job, and where."""
    directory = counter.work / "fleeting"
    directory.mkdir()
    job = counter.submit("-h", "-o", f"{directory}/", "-e", f"{directory}/", "--", "true")
    directory.rmdir()
    directory.touch()
    released = counter.run("grls", job)
    story = counter.ended(job)

    assert released.status == 0
    assert story.row.outcome is not None
    assert story.row.outcome.kind == "launch_failed"
    assert str(directory) in story.row.outcome.message
    waited = counter.run("gwait", job)
    assert waited.status == 126
    assert "could not be started on n1: " in waited.stdout
    assert str(directory) in waited.stdout


def test_a_working_directory_that_becomes_a_file_ends_the_job_in_words(counter: Counter) -> None:
    directory = counter.work / "away"
    directory.mkdir()
    job = counter.submit("-h", "-d", str(directory), "--", "true")
    directory.rmdir()
    directory.touch()
    counter.run("grls", job)
    story = counter.ended(job)

    assert story.row.outcome is not None
    assert story.row.outcome.kind == "launch_failed"
    assert str(directory) in story.row.outcome.message
    assert len(story.attempts) == 1, "its own fault: to try again would be in vain"


def test_a_python_without_torch_is_named_with_what_to_do(counter: Counter) -> None:
    """Not with a traceback from inside gsched."""
    bare = counter.work / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    script = counter.script("train.py", b"print('never')\n")
    ran = counter.run("gsub", "--wait", "--python", str(bare), "--torchrun", script)

    assert ran.status == 127, ran
    assert "has no torch: activate an environment that has it before gsub" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_missing_training_script_is_refused(counter: Counter) -> None:
    ran = counter.run("gsub", "--python", sys.executable, "--torchrun", "nosuch.py")

    refused(ran, 66, f"training script {counter.work}/nosuch.py does not exist")


# --- the head ---


def test_a_dead_head_is_named_with_what_to_try(cluster: Cluster) -> None:
    """After kill -9 its socket is still there, and nobody listens."""
    cluster.start_head()
    cluster.kill_head()

    assert cluster.socket.exists()
    for name, arguments in (("gsub", ["--", "true"]), ("gstat", []), ("gdel", ["1"])):
        ran = run_command(name, *arguments, head=cluster.socket, cwd=cluster.jobs)
        refused(ran, 69, f"no head answers at {cluster.socket}", "connection refused")
        assert "gsched doctor" in ran.stderr
        assert "$GSCHED_HEAD" in ran.stderr


def test_an_address_where_no_head_ever_was_is_named(counter: Counter, tmp_path: Path) -> None:
    ran = counter.run("gstat", "--head", str(tmp_path / "none.sock"))

    refused(ran, 69, f"no head answers at {tmp_path}/none.sock (from --head)", "no such file")


def test_a_port_where_nobody_listens_is_named(counter: Counter) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody else can take it meanwhile
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ran = counter.run("gstat", head=f"http://127.0.0.1:{port}")

    refused(ran, 69, f"http://127.0.0.1:{port} (from $GSCHED_HEAD)", "connection refused")


# --- jobs that are none, not there any more, or in the wrong state ---


@pytest.mark.parametrize("command", ["gstat", "ghist"])
def test_unknown_ids_do_not_keep_the_others_from_being_shown(
    counter: Counter, done: str, command: str
) -> None:
    ran = counter.run(command, "9999", done, "nonsense")

    assert ran.status == 153
    assert f"\n{done}.test\t" in ran.stdout
    assert f"{command}: Unknown Job Id 9999.test" in ran.stderr
    assert f"{command}: Unknown Job Id nonsense" in ran.stderr
    assert "123.server" in ran.stderr


def test_unknown_ids_do_not_keep_the_others_from_being_deleted(counter: Counter) -> None:
    first, second = counter.submit("-h", "--", "true"), counter.submit("-h", "--", "true")
    ran = counter.run("gdel", first, "9999", second)

    refused(ran, 153, "gdel: Unknown Job Id 9999.test")
    assert [counter.row(job).state for job in (first, second)] == ["done", "done"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *(("gpeek", []), ("gwait", []), ("ghold", []), ("grls", []), ("gsig", [])),
        *(("grerun", []), ("galter", ["-p", "1"]), ("gstat", ["-f"])),
    ],
)
def test_an_unknown_id_is_told_by_every_command(
    counter: Counter, command: str, arguments: list[str]
) -> None:
    refused(counter.run(command, *arguments, "9999"), 153, f"{command}: Unknown Job Id 9999.test")


def test_gdel_of_a_job_that_is_done_says_so(counter: Counter, done: str) -> None:
    refused(
        counter.run("gdel", done), 170, f"job {done}.test has already finished", f"ghist {done}"
    )


def test_a_held_job_can_get_no_signal(counter: Counter, held: str) -> None:
    refused(counter.run("gsig", "-s", "USR1", held), 170, f"job {held} is held", "running job")


def test_an_unknown_signal_is_met_with_the_one_meant(counter: Counter, running: str) -> None:
    refused(counter.run("gsig", "-s", "TREM", running), 2, "TREM", "did you mean 'TERM'?")


def test_a_job_that_is_not_held_cannot_be_released(counter: Counter, running: str) -> None:
    refused(counter.run("grls", running), 170, f"job {running} is not held")


def test_a_waiting_job_cannot_be_rerun(counter: Counter, held: str) -> None:
    refused(counter.run("grerun", held), 170, f"job {held} is held: only a running job")


def test_a_job_that_says_it_is_not_rerunnable_is_left_alone(counter: Counter, running: str) -> None:
    refused(counter.run("grerun", running), 170, "is not rerunnable (-r n)", "-f")
    assert counter.row(running).state == "running"


def test_galter_of_nothing_is_refused(counter: Counter, held: str) -> None:
    refused(counter.run("galter", held), 2, "nothing to change")


def test_gwait_gives_up_after_its_time_and_says_how_the_job_is(counter: Counter, held: str) -> None:
    ran = counter.run("gwait", "--timeout", "0.2", held)

    refused(ran, 124, f"job {held}.test is still held after --timeout 0.2", "grls")


def test_gwait_names_a_bad_time_with_its_option(counter: Counter, held: str) -> None:
    refused(counter.run("gwait", "--timeout", "x", held), 2, "--timeout: invalid time 'x'")


# --- other people's jobs, and what is for operators ---


def test_somebody_elses_job_cannot_be_deleted(counter: Counter, held: str) -> None:
    ran = counter.run_as_other("gdel", held)

    refused(ran, 159, f"job {held} belongs to root", "its owner or an operator")
    assert counter.row(held).state == "held"


def test_somebody_elses_output_cannot_be_read(counter: Counter, running: str) -> None:
    refused(counter.run_as_other("gpeek", running), 159, f"job {running} belongs to root")


def test_all_means_ones_own_jobs(counter: Counter, held: str, running: str) -> None:
    ran = counter.run_as_other("gdel", "all")

    assert (ran.status, ran.stdout, ran.stderr) == (0, "", "")
    assert [counter.row(job).state for job in (held, running)] == ["held", "running"]


def test_who_is_no_operator_drains_no_node(counter: Counter) -> None:
    ran = counter.run_as_other("gnodes", "drain", "n1", "-m", "mine")

    refused(ran, 159, "only an operator can change nodes")
    assert not counter.cluster.head.nodes().nodes[0].drained


def test_who_is_no_operator_saves_no_snapshot(counter: Counter) -> None:
    ran = counter.run_as_other("gsched", "doctor", "--save-snapshot", "/tmp/gsched-snapshot-none")

    refused(ran, 159, "only an operator can save what the policies see")


def test_who_is_no_operator_puts_no_operator_hold(counter: Counter) -> None:
    refused(counter.run_as_other("ghold", "-h", "o", "1"), 159, "operator holds are for operators")


def test_nobody_submits_as_somebody_else(counter: Counter) -> None:
    ran = counter.run_as_other("gsub", "-u", "root", "--", "true")

    refused(ran, 159, "-u root: jobs run as the submitting user")


# --- nodes and history ---


@pytest.mark.parametrize("operands", [["nope"], ["drain", "nope", "-m", "x"], ["resume", "nope"]])
def test_a_node_that_is_none_is_named(counter: Counter, operands: list[str]) -> None:
    refused(counter.run("gnodes", *operands), 68, "nknown node", "nope", "hint: ")


def test_a_drain_needs_a_reason(counter: Counter) -> None:
    ran = counter.run("gnodes", "drain", "n1")

    refused(ran, 2, "drain needs a reason", 'gnodes drain n1 -m "new driver"')
    assert not counter.cluster.head.nodes().nodes[0].drained


def test_a_script_cannot_say_by_accident_that_a_node_is_dead(counter: Counter) -> None:
    refused(
        counter.run("gnodes", "confirm-dead", "n1"), 2, "confirm-dead needs a confirmation", "-y n1"
    )


def test_a_node_that_answers_is_not_dead(counter: Counter) -> None:
    ran = counter.run("gnodes", "confirm-dead", "-y", "n1")

    refused(ran, 170, "node n1 is connected, so it is not dead")


@pytest.mark.parametrize("moment", ["foo", "2026-13-45", "25:00"])
def test_a_moment_that_is_none_is_named_with_its_option(counter: Counter, moment: str) -> None:
    ran = counter.run("ghist", "--since", moment)

    refused(ran, 2, f"--since: invalid time '{moment}'", "monday or 2d")


def test_an_unknown_outcome_lists_the_known_ones(counter: Counter) -> None:
    refused(counter.run("ghist", "--outcome", "broken"), 2, "'broken'", "'launch_failed'")


def test_filters_and_ids_exclude_each_other(counter: Counter, done: str) -> None:
    ran = counter.run("ghist", "--failed", done)

    refused(ran, 2, "job ids and --failed are mutually exclusive")
