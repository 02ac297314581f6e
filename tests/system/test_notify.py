"""Mail and hooks of a real head: sent once, whatever is killed, and never in the way of others."""

import json
from collections import Counter
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from gsched.protocol.api import NotifyRow
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.mailbox import HANG, LATER, TAKE, MailServer, WebServer, serving
from tests.support.monitor import is_ready


@pytest.fixture
def mails() -> Iterator[MailServer]:
    with serving(MailServer()) as server:
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving(WebServer()) as server:
        yield server


def notify_table(**keys: object) -> str:
    return "[notify]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def gsub(cluster: Cluster, *arguments: str) -> Ran:
    ran = run_command("gsub", *arguments, head=cluster.socket, cwd=cluster.jobs)
    assert ran.status == 0, ran.stderr
    return ran


def start(cluster: Cluster, **keys: object) -> None:
    cluster.queues = notify_table(retry_s=0.1, **keys)
    cluster.start_head()
    cluster.start_node("n1", cpus=4)


def test_users_and_the_site_are_told_by_every_way_while_one_of_them_hangs(
    cluster: Cluster, mails: MailServer, web: WebServer
) -> None:
    """The site's URL hangs, and a user's URL: mail, the command and another URL do not wait."""
    told = cluster.directory / "told"
    command = cluster.directory / "hook"
    command.write_text(
        f'#!/bin/sh\necho "$GSCHED_EVENT $GSCHED_JOB_ID $GSCHED_JOB_EXIT_STATUS" >> {told}\n'
        f"cat >> {told}.json\necho >> {told}.json\n"
    )
    command.chmod(0o755)
    with serving(WebServer()) as hanging:
        hanging.status = 0
        start(
            cluster,
            smtp_host="127.0.0.1",
            smtp_port=mails.port,
            sender="gsched@site.test",
            mail_domain="site.test",
            command=str(command),
            url=f"{hanging.origin}/site",
            allow_urls=[web.origin],
            hook_jobs="all",
            timeout_s=300.0,
            tries=2,
        )
        ran = gsub(
            cluster, "-m", "be", "-M", "me,you@b.c", "--notify", f"{web.origin}/secret/1",
            "-l", "mem=64mb,walltime=60", "-N", "train", "--", "sh", "-c",
            "echo no such data >&2; exit 3",
        )  # fmt: skip
        assert ran.stderr == ""
        wait_until(lambda: len(mails.messages) == 2, what="two mails")
        wait_until(lambda: len(web.posts) == 2, what="two posts")
        wait_until(lambda: told.exists() and len(told.read_text().splitlines()) == 2)
        wait_until(lambda: report(cluster).waiting == {"url": 2}, what="all but the site's URL")
        hanging.closing.set()  # it ends the connections without an answer
        wait_until(lambda: report(cluster).dropped.get("url", 0) == 2, what="drops")

    (recipients, begun), (_, ended) = mails.messages
    assert recipients == ["me@site.test", "you@b.c"]
    assert begun["Subject"] == "gsched: job 1 train begun on n1"
    assert ended["Subject"] == "gsched: job 1 train failed (exit 3)"
    assert (ended["From"], ended["Precedence"]) == ("gsched@site.test", "bulk")
    assert begun["Message-ID"] != ended["Message-ID"]
    lines = body(begun).splitlines()
    assert lines[:4] == [
        "PBS Job Id: 1.test",
        "Job Name:   train",
        "Exec host:  n1/0",
        "Begun execution",
    ]
    lines = body(ended).splitlines()
    assert lines[3:5] == ["Execution terminated", "Exit_status=3"]
    assert any(line.endswith(": failed with exit code 3 on n1.") for line in lines)
    assert any(line.startswith("Memory      64mb") for line in lines)
    assert lines[-3:] == ["The error output ends with:", "", "    no such data"]
    assert any(line.startswith("Walltime    00:01:00          00:00:0") for line in lines)

    assert told.read_text().splitlines() == ["begin 1.test ", "fail 1.test 3"]
    hooked = [json.loads(line) for line in Path(f"{told}.json").read_text().splitlines() if line]
    assert [(each["event"], each["name"], each["nodes"]) for each in hooked] == [
        ("begin", "train", ["n1"]),
        ("fail", "train", ["n1"]),
    ]
    assert [path for path, _ in web.posts] == ["/secret/1"] * 2
    assert "failed with exit code 3" in str(web.posts[1][1]["text"])

    status = report(cluster)
    assert (status.sent["mail"], status.sent["user-url"], status.sent["command"]) == (2, 2, 2)
    assert status.waiting == {}
    assert "2 tries failed" in status.reasons["url"]
    story = cluster.head.job(1)
    assert story.notify_url == f"{web.origin}/..."  # what follows is a secret of its owner
    doctor = run_command("gsched", "doctor", head=cluster.socket, cwd=cluster.jobs)
    assert "the URL: 2 notifications were dropped" in doctor.stdout


def test_a_head_killed_between_event_and_mail_sends_it_once_when_it_is_back(
    cluster: Cluster,
) -> None:
    with serving(MailServer()) as first:
        port = first.port
    start(
        cluster,
        smtp_host="127.0.0.1",
        smtp_port=port,
        mail_domain="site.test",
        mail_subject="pbs",
    )
    for _ in range(3):
        gsub(cluster, "-m", "e", "--", "true")
    gsub(cluster, "-m", "be", "-t", "0-2", "--", "true")
    gsub(cluster, "-m", "ej", "-t", "0-1", "--", "true")
    assert run_command("gwait", "1", "2", "3", "4[]", "5[]", head=cluster.socket).status == 0
    wait_until(lambda: "mail" in report(cluster).down, what="the mail server to be missed")
    cluster.kill_head()

    with serving(MailServer(port)) as mails:
        cluster.start_head()
        wait_until(lambda: report(cluster).sent.get("mail", 0) == 7, what="mails")
        cluster.kill_head()
        cluster.start_head()  # nothing is sent again
        gsub(cluster, "-m", "e", "-N", "last", "--", "true")
        wait_until(lambda: report(cluster).sent.get("mail", 0) == 8, what="the last")

    subjects = [(message["Subject"], body(message)) for _, message in mails.messages]
    assert Counter(subject for subject, _ in subjects) == {
        "PBS JOB 1.test": 1,
        "PBS JOB 2.test": 1,
        "PBS JOB 3.test": 1,
        "PBS JOB 4[].test": 2,  # one as its first element begins, one as all have ended
        "PBS JOB 5[0].test": 1,
        "PBS JOB 5[1].test": 1,
        "PBS JOB 6.test": 1,
    }
    assert any("3 of 3 elements succeeded" in text for _, text in subjects)


def test_an_end_that_was_committed_as_the_head_died_is_told_by_the_next_head(
    cluster: Cluster, mails: MailServer
) -> None:
    latch = cluster.directory / "latch"
    cluster.queues = notify_table(
        smtp_host="127.0.0.1", smtp_port=mails.port, mail_domain="site.test", mail_subject="pbs"
    )
    cluster.start_head(env={"GSCHED_FAIL": f"head.exit.after_commit:kill-once={latch}"})
    cluster.start_node("n1", cpus=4)
    gsub(cluster, "-m", "e", "--", "sh", "-c", "exit 4")
    wait_until(lambda: cluster.head_process.poll() is not None, what="the head to die")
    assert latch.exists()

    cluster.start_head()
    gsub(cluster, "-m", "e", "--", "true")
    wait_until(lambda: len(mails.messages) == 2, what="two mails")

    assert sorted(message["Subject"] for _, message in mails.messages) == [
        *("PBS JOB 1.test", "PBS JOB 2.test")
    ]


def test_a_notifier_killed_after_a_delivery_repeats_that_one_and_no_other(
    cluster: Cluster, mails: MailServer
) -> None:
    latch = cluster.directory / "latch"
    cluster.queues = notify_table(
        smtp_host="127.0.0.1", smtp_port=mails.port, mail_domain="site.test", retry_s=0.1
    )
    cluster.start_head(env={"GSCHED_FAIL": f"notify.after_delivery:2:kill-once={latch}"})
    cluster.start_node("n1", cpus=4)
    for _ in range(4):
        gsub(cluster, "-m", "e", "--", "true")

    wait_until(lambda: len(mails.messages) >= 5, what="four mails, and one again")
    wait_until(lambda: report(cluster).sent.get("mail", 0) == 4)

    ids = Counter(message["Message-ID"] for _, message in mails.messages)
    assert latch.exists()
    assert sorted(ids.values()) == [1, 1, 1, 2]


def test_a_mail_server_that_says_nothing_blocks_neither_the_head_nor_its_end(
    cluster: Cluster, mails: MailServer
) -> None:
    mails.mood = HANG
    start(cluster, smtp_host="127.0.0.1", smtp_port=mails.port, timeout_s=0.5, tries=2)
    gsub(cluster, "-m", "be", "--wait", "--", "true")

    wait_until(lambda: report(cluster).dropped.get("mail", 0) == 2, what="drops")

    status = report(cluster)
    assert "no answer within 0.5 s" in status.reasons["mail"]
    assert cluster.stop_head() == 0


def report(cluster: Cluster) -> NotifyRow:
    row = cluster.head.status().notify
    assert row is not None
    return row


def body(message: Message) -> str:
    content = message.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content.decode()


def test_a_report_is_mailed_by_the_notifier(cluster: Cluster, mails: MailServer) -> None:
    """With its page, once, also when the mail server is there only later."""
    mails.mood = LATER
    cluster.has_monitor = True
    start(
        cluster,
        smtp_host="127.0.0.1",
        smtp_port=mails.port,
        sender="gsched@site.test",
        mail_domain="site.test",
        recipient_domains=["site.test"],
    )
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    words = ("greport", "daily", "--of", "today", "--mail")
    ran = run_command(*words, "operators", head=cluster.socket, cwd=cluster.jobs)
    assert (ran.status, ran.stdout) == (0, "")
    assert "the report goes to operators@site.test" in ran.stderr
    refused = run_command(*words, "me@elsewhere.test", head=cluster.socket, cwd=cluster.jobs)
    assert refused.status != 0
    assert "--mail: this site sends no mail to elsewhere.test" in refused.stderr
    wait_until(lambda: mails.talks > 0, what="the first try")
    mails.mood = TAKE
    wait_until(lambda: mails.messages, what="the report")

    ((recipients, message),) = mails.messages
    assert recipients == ["operators@site.test"]
    assert str(message["Subject"]).startswith("Daily report of test: ")
    _, text, page = message.walk()
    assert "0 jobs ended" in body(text)
    assert str(page.get_filename()).startswith("test-daily-")
    assert body(page).startswith("<!DOCTYPE html>")
