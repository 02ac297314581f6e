"""A job is submitted again on the page: it has all that was requested, or that is said before."""

import html
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
from msgspec import structs

from gsched.cli.submit.rows import ROWS
from gsched.model.job import JobSpec
from tests.support.cluster import Cluster, wait_until
from tests.support.in_process import run_here
from tests.support.monitor import Browser, Response, address, is_ready

pytestmark = pytest.mark.timeout(180)

TABLES = """
[notify]
allow_urls = ["https://hooks.example"]
smtp_host = "localhost"
[[queue]]
name = "batch"
[[queue]]
name = "long"
"""
TRAINING = ("--params", "1M", "--samples", "1000", "--batch", "10", "--epochs", "2")
WORKLOAD = (*TRAINING, "--step-time", "35ms")
ADAPTIVE = ("--adaptive", "--gpus", "1..4", "--batch", "8", "--batch-max", "64")
#: Arguments of gsub, by the fields of options; all of them but `NOT_REPEATED`.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "name": ("-N", "some/name"),
    "queue": ("-q", "long"),
    "account": ("-A", "physics"),
    "project": ("-P", "physics"),
    "qos": ("--qos", "normal"),
    "priority": ("-p", "-5"),
    "start_after": ("-a", "12312359"),
    "hold": ("-h",),
    "rerunnable": ("-r", "n"),
    "kind": ("--kind", "resnet"),
    "comment": ("--comment", "a <b> & 'c'"),
    "resources": ("-l", "nodes=2:ppn=3:gpus=1:big+1:ppn=1,mem=3gb,walltime=12:34"),
    "walltime": ("--walltime", "90m"),
    "nodes": ("--nodes", "2"),
    "cpus": ("--cpus", "3"),
    "gpus": ("--gpus", "1..4", "--elastic"),
    "mem": ("--mem", "123mb"),
    "exclusive": ("--exclusive",),
    "gpu_share": ("--gpu-share", "40%,16gb"),
    "share_class": ("--gpu-share", "40%", "--share-class", "high"),
    "every_node": ("--every-node", "--nodes", "2"),
    "script_arguments": ("-F", "3 'x  y' \"it's\" $HOME"),
    "shell": ("-S", "/bin/bash"),
    "workdir": ("-d", "/tmp"),
    "variables": ("-v", "COLOUR=red,EMPTY="),
    "export_all": ("-V",),
    "snapshot": ("--snapshot",),
    "stage_in": ("--stage-in", "job.sh"),
    "stage_out": ("--stage-out", "results"),
    "container": ("--container", "docker.io/library/alpine:3"),
    "container_mounts": ("--container", "a.example/b:1", "--container-mount", "/tmp:/data:ro"),
    "container_workdir": ("--container", "a.example/b:1", "--container-workdir", "/work"),
    "container_runtime": ("--container", "a.example/b:1", "--container-runtime", "podman"),
    "stdout": ("-o", "/tmp/out-$PBS_JOBID"),
    "stderr": ("-e", "/tmp/"),
    "join": ("-j", "oe"),
    "keep": ("-k", "oe"),
    "open_mode": ("--open-mode", "append"),
    "mail_points": ("-m", "abe"),
    "mail_to": ("-M", "ann@example.org"),
    "notify": ("--notify", "https://hooks.example/me"),
    "array": ("-t", "0-9:3%2"),
    "each_line": ("--each-line", "lines"),
    "dependency": ("--dependency", "afterany:1"),
    "extras": ("-W", "depend=after:1,umask=027"),
    "grace": ("-K", "77"),
    "signal": ("--signal", "B:USR1@90", "--walltime", "1h"),
    "requeue_on": ("--requeue-on", "node-failure:5"),
    "lease": ("--lease", "2h"),
    "elastic": ("--elastic",),
    "checkpoint_dir": ("--elastic", "--checkpoint-dir", "/tmp/ck"),
    "checkpoint_interval": ("--elastic", "--checkpoint-interval", "5m"),
    "checkpoint_signal": ("--checkpoint-signal", "USR2"),
    "checkpoint": ("--elastic", "-c", "c=7"),
    "profile": ("--profile", "--elastic", "--gpus", "1..4"),
    "deadline": ("--deadline", "8h", "--walltime", "1h"),
    "training": ("--training", "t.toml", "--gpus", "1"),
    "params": (*WORKLOAD, "--gpus", "1"),
    "samples": (*WORKLOAD, "--gpus", "2"),
    "batch": (*WORKLOAD, "--gpus", "1..2", "--elastic"),
    "epochs": (*WORKLOAD, "--gpus", "1"),
    "step_time": (*WORKLOAD, "--gpus", "1"),
    "adaptive": ADAPTIVE,
    "batch_max": ADAPTIVE,
    "batch_per_gpu_max": (*ADAPTIVE, "--batch-per-gpu-max", "16"),
    "gpu_types": (*ADAPTIVE, "--gpu-types", "any"),
    "scaling": ("--adaptive", "--gpus", "1..4", "--batch", "8", "--scaling", "strong"),
    "replica_gpus": (*ADAPTIVE, "--gpu-types", "a100,t4", "--replica-gpus", "a100=1,t4=2"),
    "non_preemptible": (*ADAPTIVE, "--non-preemptible"),
    "inference": (*ADAPTIVE, "--inference"),
    "latency": (*ADAPTIVE, "--inference", "--latency", "50ms"),
    "requests": (*ADAPTIVE, "--inference", "--requests", "10"),
    "node_exclusive": ("-n",),
}
#: What is of a submission and no part of a request, has no effect, or has a test of its own.
NOT_REPEATED = {
    *("users", "no_id", "dry_run", "wait", "watch", "prefix", "interactive", "executes"),
    *("detach_timeout", "torchrun", "python", "urgency", "reject_if_late", "reservation"),
    *(row.field for row in ROWS if row.note),
}


@pytest.fixture
def browser(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Browser:
    """A cluster without nodes: its jobs wait."""
    cluster.has_monitor = True
    cluster.queues = TABLES
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    monkeypatch.chdir(cluster.jobs)
    Path("job.sh").write_text("#!/bin/sh\n\necho '<hi>' \\\n & true\n", encoding="utf-8")
    Path("lines").write_text("one\ntwo\n", encoding="utf-8")
    Path("t.toml").write_text(
        "[training]\nparameters = 1e6\nsamples = 100\nbatch = 10\nepochs = 1\nstep_time = 0.1\n",
        encoding="utf-8",
    )
    made = Browser(address(cluster))
    made.log_in()
    return made


def gsub(cluster: Cluster, *arguments: str) -> str:
    ran = run_here("gsub", *arguments, head=cluster.socket)
    assert ran.status == 0, (arguments, ran.stderr)
    return ran.stdout.strip().partition(".")[0]


def fields_of(page: Response) -> dict[str, str]:
    """Return what a browser sends of the form: ends of lines as browsers write them."""
    assert page.status == 200, page.text
    form = page.text[page.text.index('<form class="form"') :]
    found = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input[^>]*?name="([^"]+)" value="([^"]*)"', form)
    }
    found["queue"] = re.findall(r"<option selected>([^<]+)<", form)[0]
    for script in re.findall(r'<textarea name="script"[^>]*>\n(.*?)</textarea>', form, re.DOTALL):
        found["script"] = html.unescape(script).replace("\n", "\r\n")
    return found


def spec_of(cluster: Cluster, job: str) -> JobSpec:
    """Return what a job was submitted with; another submission has another key."""
    with sqlite3.connect(f"file:{cluster.state_dir / 'gsched.db'}?mode=ro", uri=True) as database:
        query = "SELECT spec FROM specs WHERE job = ?"
        (text,) = database.execute(query, (int(job.partition("[")[0]),)).fetchone()
    return structs.replace(msgspec.json.decode(text, type=JobSpec), client_key="")


def sent_again(browser: Browser, job: str, **changes: str) -> str:
    """Submit a job again with the form of the page, and return the new one."""
    fields = fields_of(browser.get(f"/submit?from={job}")) | changes
    answer = browser.post("/submit", fields)
    assert answer.status == 303, answer.text
    return unquote(answer.headers["location"].rpartition("/")[2])


def test_every_option_has_an_example() -> None:
    assert {row.field for row in ROWS} == EXAMPLES.keys() | NOT_REPEATED


def test_a_job_with_any_option_is_the_same_when_it_is_submitted_again(
    cluster: Cluster, browser: Browser
) -> None:
    gsub(cluster, "-h", "--", "true")
    differ: dict[str, object] = {}
    for field, arguments in EXAMPLES.items():
        job = gsub(cluster, *arguments, "job.sh")
        before, after = spec_of(cluster, job), spec_of(cluster, sent_again(browser, job))
        if before != after:
            differ[field] = (arguments, before, after)
    assert differ == {}


def test_a_job_without_a_script_is_submitted_again_with_its_command(
    cluster: Cluster, browser: Browser
) -> None:
    Path("train.py").touch()
    job = ""
    for arguments in (("--", "sh", "-c", "echo $1 'a  b'", "x"), ("--torchrun", "train.py", "-x")):
        job = gsub(cluster, *arguments)
        assert spec_of(cluster, sent_again(browser, job)) == spec_of(cluster, job)
    changed = spec_of(cluster, sent_again(browser, job, arguments="train.py 'a b'", name="other"))
    assert changed.arguments == ("train.py", "a b")
    wrong = browser.post(
        "/submit", fields_of(browser.get(f"/submit?from={job}")) | {"arguments": "'"}
    )
    assert wrong.status == 400
    assert "he arguments cannot be read" in wrong.text


def test_a_name_of_blanks_is_refused_as_any_other_that_is_no_word(
    cluster: Cluster, browser: Browser
) -> None:
    job = gsub(cluster, "job.sh")
    for like in ("", job):
        fields = fields_of(browser.get(f"/submit?from={job}")) | {"from": like}
        for name in ("   ", "a b"):
            refused = browser.post("/submit", fields | {"name": name})
            assert refused.status == 400
            assert "cannot be used" in refused.text
    assert spec_of(cluster, sent_again(browser, job, name=" fits ")).name == "fits"


def test_the_form_tells_what_a_deadline_is_repeated_without(
    cluster: Cluster, browser: Browser
) -> None:
    """And whether the new job can meet it, where it is only checked."""
    job, other = gsub(cluster, "--deadline", "8h", "job.sh"), gsub(cluster, "job.sh")
    page = browser.get(f"/submit?from={job}")
    assert "--reject-if-late" in page.text
    checked = browser.post("/submit", fields_of(page) | {"check": "1"})
    assert "annot predict whether the deadline" in checked.text
    assert f"Submit job {job} again" in checked.text
    assert "--reject-if-late" not in browser.get(f"/submit?from={other}").text


def test_a_form_that_is_sent_twice_submits_one_job(cluster: Cluster, browser: Browser) -> None:
    """Also when the first has ended; a form without a key is refused."""
    job = gsub(cluster, "job.sh")
    fields = fields_of(browser.get(f"/submit?from={job}"))
    first = browser.post("/submit", fields).headers["location"]
    run_here("gdel", first.rpartition("/")[2], head=cluster.socket)

    assert browser.post("/submit", fields).headers["location"] == first
    for path in ("/submit", f"/jobs/{job}/rerun-failed"):
        refused = browser.post(path, fields | {"key": ""})
        assert refused.status == 400
        assert "he form has no key" in refused.text


def test_a_form_that_is_changed_after_back_submits_another_job(
    cluster: Cluster, browser: Browser
) -> None:
    """The browser shows the form as it was, with the key that it had."""
    job = gsub(cluster, "job.sh")
    for like in ("", job):  # a new job, or one like another
        fields = fields_of(browser.get(f"/submit?from={job}")) | {"from": like, "name": "first"}
        renamed = fields | {"name": "second"}
        edited = renamed | {"script": "#!/bin/sh\necho edited\n"}
        jobs = [
            browser.post("/submit", each).headers["location"].rpartition("/")[2]
            for each in (fields, renamed, edited, edited)
        ]
        assert len(set(jobs)) == 3
        assert jobs[2] == jobs[3]
        assert [spec_of(cluster, each).name for each in jobs[:2]] == ["first", "second"]


def test_what_a_new_job_lacks_is_shown_before_it_is_submitted(
    cluster: Cluster, browser: Browser
) -> None:
    """Also what it lacks since the form was shown."""
    first = gsub(cluster, "-h", "--", "true")
    job = gsub(cluster, "--dependency", f"afterok:{first}", "job.sh")
    early = fields_of(browser.get(f"/submit?from={job}"))
    assert early["without"] == ""
    run_here("gdel", job, head=cluster.socket)  # or the end of the first would do it
    run_here("gdel", first, head=cluster.socket)

    refused = browser.post("/submit", early)
    late = fields_of(browser.get(f"/submit?from={job}"))
    checked = browser.post("/submit", late | {"check": "1"})
    taken = browser.post("/submit", late)

    assert refused.status == 409
    assert f"afterok:{first} can never be satisfied" in html.unescape(refused.text)
    assert late["without"] == "depends"
    assert f"afterok:{first} can never be satisfied" in html.unescape(checked.text)
    assert taken.status == 303
    assert spec_of(cluster, taken.headers["location"].rpartition("/")[2]).depends == ()
