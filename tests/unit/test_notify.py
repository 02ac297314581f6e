"""Mail points, recipients, texts of mail, and what waits to be delivered."""

import asyncio
import contextlib
import email
import email.policy
import gc
import logging
import os
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from gsched.clock import SystemClock
from gsched.config.load import parse_config
from gsched.config.notify import NotifyConfig
from gsched.errors import ConfigError, GschedError, InvalidRequestError
from gsched.logs import Complaints
from gsched.model.ids import array_of, element_number
from gsched.model.job import JobSpec, Outcome
from gsched.model.limits import (
    MAX_HOST_NOTICES,
    MAX_NOTICES,
    MAX_SOURCE_LINES,
    MAX_USER_NOTICES,
)
from gsched.model.mail import checked_points, checked_recipients, points_of_slurm, wants_mail
from gsched.model.resources import Usage
from gsched.model.states import JobState, OutcomeKind
from gsched.protocol.actions import Alteration
from gschedd.core.requests.notify import altered_notify, checked_notify
from gschedd.core.state import facts as f
from gschedd.core.state.records import Job
from gschedd.notify.ledger import Waiting, open_ledger
from gschedd.notify.notices import (
    Address,
    Notice,
    addresses_of,
    event_of,
    points_of,
    recipients_of,
)
from gschedd.notify.scan import NotifierSettings, Scanner, Tails, tail
from gschedd.notify.texts import json_of, mail_of, variables_of
from gschedd.notify.ways import Ways
from gschedd.store.reader import Reader
from gschedd.store.rows import Batch
from gschedd.store.sqlite import Store
from tests.support.books import spec_of
from tests.support.world import submission

MAILS = NotifyConfig(smtp_host="mail")


def notice(**changes: object) -> Notice:
    plain = Notice(
        event="end", seq=9, at_s=1e9, job=7, job_id="7.head", name="train", user="ann", uid=1000,
        queue="batch", server="head", outcome="well",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def told(points: str, each: Notice, **config: object) -> list[str]:
    """Return the ways by which a job with these mail points tells of an event."""
    spec = spec_of(mail_points=points)
    site = msgspec.structs.replace(NotifyConfig(smtp_host="mx"), **config)
    return [address.way for address in addresses_of(each, spec, site)]


@pytest.mark.parametrize(
    ("outcome", "by", "event", "points"),
    [
        (Outcome(kind=OutcomeKind.EXITED, exit_code=0), "", "end", "e"),
        (Outcome(kind=OutcomeKind.EXITED, exit_code=1), "", "fail", "ef"),
        (Outcome(kind=OutcomeKind.SIGNALLED, signal=9), "", "fail", "ef"),
        (Outcome(kind=OutcomeKind.WALLTIME), "", "abort", "aef"),
        (Outcome(kind=OutcomeKind.NODE_LOST), "", "abort", "aef"),
        (Outcome(kind=OutcomeKind.CANCELLED), "root", "abort", "ae"),
        (Outcome(kind=OutcomeKind.CANCELLED), "ann", "abort", "e"),
    ],
)
def test_an_end_is_told_at_these_points(outcome: Outcome, by: str, event: str, points: str) -> None:
    assert event_of(outcome) == event
    of = notice(event=event, kind=outcome.kind.value, by=by)
    assert points_of(of) == set(points)
    for letter in "abef":
        assert told(letter, of) == (["mail"] if letter in points else []), letter
    assert told("n", of) == told("p", of) == told("", of) == []


def test_an_array_is_told_as_a_whole_or_by_its_elements() -> None:
    whole, element = notice(is_array=True), notice(array_index=3)

    assert (told("e", whole), told("e", element)) == (["mail"], [])
    assert (told("ej", whole), told("ej", element)) == ([], ["mail"])


def test_hooks_get_what_is_requested_or_everything() -> None:
    ways = {"command": "/bin/hook", "url": "http://site/x"}
    assert told("e", notice(), **ways) == ["mail", "command", "url"]
    assert told("b", notice(), **ways) == []
    assert told("n", notice(), **ways, hook_jobs="all") == ["command", "url"]
    assert told("", notice(), **ways, hook_jobs="all", hook_points="af") == []
    assert told("", notice(event="fail"), **ways, hook_jobs="all", hook_points="af") == [
        *("command", "url")
    ]
    assert told("", notice(), default_points="e") == ["mail"]


def test_a_url_of_a_user_has_a_lane_of_its_own_and_needs_the_sites_leave() -> None:
    spec = spec_of(notify_url="https://h.example/secret")
    config = NotifyConfig(allow_urls=("https://h.example",))
    (address,) = addresses_of(notice(), spec, config)

    assert (address.way, address.target) == ("user-url", "https://h.example/secret")
    assert address.lane == f"user-url {spec.owner.uid} h.example"
    assert addresses_of(notice(), spec, NotifyConfig(command="/x")) == []
    assert (
        addresses_of(notice(), spec_of(notify_url="https://h.example/", mail_points="n"), config)
        == []
    )


def test_recipients_get_the_sites_domain() -> None:
    config = NotifyConfig(mail_domain="site.test")
    assert recipients_of(spec_of(mail_to="me,you@b.c"), config) == "me@site.test,you@b.c"
    owner = spec_of().owner.user
    assert recipients_of(spec_of(), config) == f"{owner}@site.test"


def test_mail_has_the_format_of_torque_and_what_was_used() -> None:
    used = Usage(wall_s=90, cpu_s=45, memory_peak_bytes=3 * 1024**2, cpu_peak_cores=1.5, samples=2)
    of = notice(
        event="abort", kind="walltime", nodes=("n1", "n2"), exit_status=-11, used=used, cpus=4,
        outcome="terminated: exceeded its walltime limit of 00:01:30", walltime_s=90.0,
        stdout_path="/data/train.o7", stderr_path="/data/train.e7",
    )  # fmt: skip
    content = mail_of(of, sender="gsched@site", recipients="a@b.c,d@e.f", as_pbs=True)
    message = email.message_from_bytes(content, policy=email.policy.SMTP)

    assert message["Subject"] == "PBS JOB 7.head"
    assert message["To"] == "a@b.c, d@e.f"
    assert message["Precedence"] == "bulk"
    assert message.get_content().splitlines() == [
        "PBS Job Id: 7.head",
        "Job Name:   train",
        "Exec host:  n1/0+n2/0",
        "Aborted by PBS Server",
        "Exit_status=-11",
        "resources_used.cput=00:00:45",
        "resources_used.mem=3mb",
        "resources_used.walltime=00:01:30",
        "Error_Path: /data/train.e7",
        "Output_Path: /data/train.o7",
        "",
        "job 7.head (train) of ann: terminated: exceeded its walltime limit of 00:01:30.",
        "",
        "            requested         used",
        "CPUs        4                 0.5 on average, 1.5 at most",
        "Memory      -                 3mb at most",
        "Walltime    00:01:30          00:01:30",
    ]


def test_a_run_too_short_to_measure_has_no_cpu_use() -> None:
    used = Usage(wall_s=0.000276, cpu_s=0.001119, cpu_peak_cores=4.05, memory_peak_bytes=1024)
    of = notice(event="end", kind="exited", exit_status=0, used=used, cpus=1)

    assert b"CPUs        1                 -\r\n" in mail_of(of, sender="a@b", recipients="c@d")


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"event": "begin", "nodes": ("n1", "n2")}, "job 7 train begun on n1, n2"),
        ({"event": "end", "kind": "exited", "exit_status": 0}, "job 7 train finished"),
        ({"event": "fail", "kind": "exited", "exit_status": 3}, "job 7 train failed (exit 3)"),
        ({"event": "fail", "kind": "signalled", "exit_status": 265}, "train failed (signal 9)"),
        ({"event": "abort", "kind": "node_lost", "exit_status": -4}, "failed (node lost)"),
        ({"event": "abort", "kind": "cancelled"}, "job 7 train cancelled"),
        ({"event": "end", "job_id": "7[3].head", "name": "a"}, "gsched: job 7[3] a finished"),
    ],
)
def test_the_subject_names_the_job_and_its_outcome(
    changes: "dict[str, object]", subject: str
) -> None:
    message = email.message_from_bytes(
        mail_of(notice(**changes), sender="g@s", recipients="a@b"), policy=email.policy.SMTP
    )

    assert message["Subject"].startswith("gsched: job 7")
    assert message["Subject"].endswith(subject)


def test_mail_quotes_the_end_of_the_owner_s_own_error_output_only(tmp_path: Path) -> None:
    """Root must not read for a user what that user cannot: no links, files of others, pipes."""
    path, uid = tmp_path / "train.e7", os.getuid()
    path.write_text("".join(f"line {number}\n" for number in range(5000)))
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")

    lines = Tails().read(str(path), uid=uid, most=3)
    assert lines == ("line 4997", "line 4998", "line 4999")
    assert len(tail(str(path), uid=uid, most=10**6)) < 5000
    for other in ("link", "pipe", "none", "x\0y"):
        assert tail(str(tmp_path / other), uid=uid, most=3) == (), other
    assert tail(str(path), uid=uid + 1, most=3) == ()
    assert tail(str(tmp_path), uid=uid, most=3) == ()
    content = mail_of(notice(), sender="g@s", recipients="a@b", stderr=lines).decode()
    assert "The error output ends with:\r\n\r\n    line 4997\r\n" in content


def test_nothing_that_a_user_chooses_makes_a_header_or_a_variable() -> None:
    evil = "x\r\nBcc: all@world\r\n\r\nspam"
    of = notice(name=evil, outcome=evil, user=evil, stdout_path=evil, server=evil)
    message = email.message_from_bytes(
        mail_of(of, sender="g@s", recipients="a@b"), policy=email.policy.SMTP
    )

    assert message["Bcc"] is None
    assert set(message.keys()) == {
        *("From", "To", "Subject", "Date", "Message-ID", "Precedence", "Auto-Submitted"),
        *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
    }
    assert not any(line.startswith("Bcc") for line in message.get_content().splitlines())
    assert all("\n" not in value and "\0" not in value for value in variables_of(of).values())
    assert msgspec.json.decode(json_of(of))["name"] == evil  # JSON escapes it


@pytest.mark.parametrize(
    "stated",
    [
        *("a b", "a\nBcc: x@y", "a@b\r\nx", "-t", "a@", "@b", "a@b@c", "a;b", "<a@b>", "a@b c"),
        *(",".join(f"u{number}" for number in range(9)), "x" * 250 + "@b.cd", '"|/bin/sh"'),
    ],
)
def test_a_recipient_that_is_no_address_is_refused(stated: str) -> None:
    with pytest.raises(InvalidRequestError, match="-M: "):
        checked_recipients(stated)


def test_recipients_and_points_come_in_one_form() -> None:
    assert checked_recipients("me, you@b.c,me,") == ("me", "you@b.c")
    assert checked_points("e,b") == "be"
    assert points_of_slurm("begin,END,TIME_LIMIT_50") == ("be", ["TIME_LIMIT_50"])
    assert points_of_slurm("NONE,FAIL") == ("af", [])
    assert wants_mail("", "me")
    assert not wants_mail("n", "me")


def test_a_job_is_told_when_its_site_sends_no_mail() -> None:
    asked = submission(mail_points="e", mail_to="me")
    (warning,) = checked_notify(asked, NotifyConfig()).warnings
    assert warning.startswith("this site sends no mail: the job's request for mail has no effect")
    assert checked_notify(asked, MAILS).warnings == ()
    assert checked_notify(submission(mail_points="n"), NotifyConfig()).warnings == ()
    with pytest.raises(InvalidRequestError, match="sends no mail"):
        altered_notify(Alteration(mail_points="e"), NotifyConfig())
    assert altered_notify(Alteration(mail_points="n"), NotifyConfig()) == {"mail_points": "n"}


def test_odd_recipients_of_a_script_for_torque_are_ignored() -> None:
    asked = submission(mail_points="e", mail_to="$USER@x", warn_unknown=True)
    found = checked_notify(asked, MAILS)
    assert found.stated["mail_to"] == ""
    assert "-M is ignored" in found.warnings[0]


def test_a_site_limits_recipients_to_its_domains() -> None:
    site = NotifyConfig(smtp_host="mail", recipient_domains=("Site.test",), mail_domain="site.test")
    assert checked_notify(submission(mail_to="me,you@SITE.test"), site).warnings == ()
    with pytest.raises(InvalidRequestError, match=r"no mail to evil\.test"):
        checked_notify(submission(mail_to="me,x@evil.test"), site)


@pytest.mark.parametrize(
    "url",
    [
        *("https://hooks.test.evil.com/x", "https://hooks.test@evil.com/x", "file:///etc/passwd"),
        *("http://hooks.test/x", "https://hooks.test:81/x", "https://127.0.0.1/", "hooks.test"),
        *("https://hooks.test/a b", "https://hooks.test/\r\nX: y", "https://[", "//hooks.test/x"),
    ],
)
def test_a_url_of_another_origin_is_refused(url: str) -> None:
    site = NotifyConfig(allow_urls=("https://hooks.test",))
    assert checked_notify(submission(notify_url="https://hooks.test/a?b=1"), site).stated[
        "notify_url"
    ]
    with pytest.raises(InvalidRequestError, match="is not allowed at this site"):
        checked_notify(submission(notify_url=url), site)
    with pytest.raises(InvalidRequestError, match="allows no URLs"):
        checked_notify(submission(notify_url=url), MAILS)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('sendmail = "/x"\nsmtp_host = "y"', "mutually exclusive"),
        ('smtp_tls = "ssl"', "invalid value 'ssl'"),
        ('smtp_user = "me"', "belong together"),
        ('smtp_user = "me"\nsmtp_password_file = "/x"', "encrypted"),
        ('command = "hook"', "'hook'"),
        ('url = "ftp://x"', "invalid URL"),
        ('allow_urls = ["https://x/path"]', "invalid origin"),
        ('default_points = "x"', "invalid mail points"),
        ('hook_jobs = "some"', "invalid value"),
        ('sender = "a b"', "sender"),
        ('recipient_domains = ["x y"]', "invalid domain"),
        ("tries = 0", "tries"),
    ],
)
def test_a_mistake_in_the_table_is_named(keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(f"[notify]\n{keys}\n", where="x.toml")


def test_what_waits_survives_a_restart_and_an_unreadable_file_is_set_aside(tmp_path: Path) -> None:
    path = str(tmp_path / "notify.db")
    ledger, trouble = open_ledger(path)
    assert (trouble, ledger.cursor) == ("", None)
    with ledger.transaction():
        assert ledger.put(Address(way="mail", lane="mail", target="a@b"), b"x", 5.0)
        assert ledger.begins(7)
        ledger.move_cursor(12)
    ledger.close()

    ledger, _ = open_ledger(path)
    each = ledger.due("mail", 6.0)
    assert each is not None
    assert (ledger.cursor, each.body, each.tries) == (12, b"x", 0)
    with ledger.transaction():
        assert not ledger.begins(7)
    ledger.postponed(each, 20.0)
    assert ledger.due("mail", 19.0) is None
    again = ledger.due("mail", 20.0)
    assert again is not None
    assert again.tries == 1
    ledger.dropped(again, "no such user")
    assert ledger.counts() == {"dropped mail": (1, "no such user")}
    assert ledger.waiting() == {}
    ledger.close()

    Path(path).write_bytes(b"no database" * 1000)
    ledger, trouble = open_ledger(path)
    assert "cannot be read" in trouble
    assert ledger.cursor is None
    assert (tmp_path / "notify.db.damaged").exists()
    ledger.close()


def test_a_transaction_that_fails_puts_nothing_down(tmp_path: Path) -> None:
    ledger, _ = open_ledger(str(tmp_path / "notify.db"))

    def fail() -> None:
        with ledger.transaction():
            ledger.put(Address(way="mail", lane="mail"), b"x", 5.0)
            ledger.move_cursor(3)
            raise GschedError("killed")

    with pytest.raises(GschedError):
        fail()
    assert (ledger.cursor, ledger.waiting()) == (None, {})
    ledger.close()


def test_a_lane_of_a_user_is_bounded_and_mails_are_counted_by_the_hour(tmp_path: Path) -> None:
    ledger, _ = open_ledger(str(tmp_path / "notify.db"))
    address = Address(way="user-url", lane="user-url 1 https://x", target="https://x/y")
    with ledger.transaction():
        taken = [ledger.put(address, b"", 0.0) for _ in range(MAX_HOST_NOTICES + 2)]
        counts = [ledger.mails_in_hour(5, now_s) for now_s in (0.0, 10.0, 3599.0, 3600.0)]
    assert taken == [True] * MAX_HOST_NOTICES + [False] * 2
    assert counts == [1, 2, 3, 1]
    ledger.close()


def told_by(site: NotifyConfig) -> NotifierSettings:
    return NotifierSettings(config=site, server="head", sender="g@s")


def complaints() -> Complaints:
    return Complaints(logging.getLogger("gschedd.notify"), SystemClock())


def end_jobs(store: Store, spec: JobSpec, numbers: range, at_s: float) -> None:
    """Let jobs come and end well."""
    done = Outcome(kind=OutcomeKind.EXITED, exit_code=0)
    facts: list[f.AnyFact] = []
    jobs = []
    for number in numbers:
        facts.append(f.JobSubmitted(at_s=at_s, job=number, spec=spec, state=JobState.QUEUED))
        facts.append(f.JobEnded(at_s=at_s, job=number, outcome=done, ended_s=at_s))
        jobs.append(
            Job(
                id=number, spec=spec, state=JobState.DONE, submitted_s=at_s, eligible_s=at_s,
                ended_s=at_s, outcome=done,
            )
        )  # fmt: skip
    store.commit(
        Batch(
            facts=facts, jobs=jobs, attempts=[], nodes=[], blobs={}, next_job=numbers.stop,
            runs=[], removed_nodes=frozenset(),
        )
    )  # fmt: skip


def test_users_take_turns_at_a_way_and_one_of_them_fills_only_his_lane(tmp_path: Path) -> None:
    ledger, _ = open_ledger(str(tmp_path / "notify.db"))
    with ledger.transaction():
        for uid, count in ((1, MAX_USER_NOTICES + 1), (20, 2), (3, 1)):
            each = Address(way="mail", lane=f"mail {uid}")
            room = [ledger.put(each, b"", 0.0) for _ in range(count)]
            assert room == [True] * min(count, MAX_USER_NOTICES) + [False] * (uid == 1)
    order: list[str] = []
    turn = ""
    while len(order) < 6 and (found := ledger.next_due("mail", turn, 1.0)) is not None:
        turn = found.lane
        order.append(turn)
        ledger.delivered(found)

    assert order == ["mail 1", "mail 20", "mail 3", "mail 1", "mail 20", "mail 1"]
    ledger.close()


def test_all_users_together_have_a_bound_at_a_way(tmp_path: Path) -> None:
    ledger, _ = open_ledger(str(tmp_path / "notify.db"))
    users = MAX_NOTICES // MAX_USER_NOTICES
    with ledger.transaction():
        taken = [
            ledger.put(Address(way="mail", lane=f"mail {uid}"), b"", 0.0)
            for uid in range(users + 1)
            for _ in range(MAX_USER_NOTICES)
        ]
        assert ledger.put(Address(way="url", lane="url 1"), b"", 0.0), "another way has its own"
    assert sum(taken) == MAX_NOTICES
    ledger.close()


def test_dropped_notices_of_a_user_are_a_few_lines_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of 6,000 mails that are too many: one line for each step, and five in a minute."""
    store = Store(str(tmp_path))
    store.open()
    ledger, _ = open_ledger(str(tmp_path / "notify.db"))
    reader = Reader(store.path)
    site = NotifyConfig(smtp_host="mx", mails_per_user_hour=1)
    scanner = Scanner(reader, ledger, told_by(site), complaints())
    scanner.begin(store.reached[0])
    end_jobs(store, spec_of(mail_points="e"), range(1, 6000), 7200.0)
    with caplog.at_level(logging.WARNING):
        while scanner.step(7201.0):
            pass

    assert ledger.counts()["dropped mail"][0] == 5998
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MAX_SOURCE_LINES
    assert "notifications by mail dropped: more than 1 mails" in lines[0]
    reader.close()
    ledger.close()
    store.close()


WARNED = f.GpusIdleWarned(
    at_s=7200.0,
    job=1,
    attempt=1,
    gpus={"n1": (0,)},
    of=1,
    since_s=3600.0,
    action="hold",
    acts_s=9000.0,
)
IDLED = f.GpusIdled(at_s=9000.0, job=1, attempt=1, idle_s=5400.0, action="hold", returned_s=60.0)


def idle_mails(store: Store, spec: JobSpec, facts: list[f.AnyFact]) -> list[str]:
    """Return the subjects of the mail about these facts of jobs with the numbers of the facts."""
    numbers = {fact.job for fact in facts if isinstance(fact, f.JobFact)}
    jobs = [
        Job(id=number, spec=spec, state=JobState.RUNNING, submitted_s=0.0, eligible_s=0.0)
        for number in sorted({*numbers, *(array_of(number) for number in numbers)} - {0})
    ]
    known: list[f.AnyFact] = [
        f.JobSubmitted(at_s=0.0, job=job.id, spec=spec, state=JobState.QUEUED) for job in jobs
    ]
    batch = Batch(facts=[*known, *facts], jobs=jobs, attempts=[], nodes=[], blobs={}, next_job=9)
    ledger, _ = open_ledger(f"{store.path}.notify")
    reader = Reader(store.path)
    scanner = Scanner(reader, ledger, told_by(MAILS), complaints())
    scanner.begin(store.reached[0])
    store.commit(batch)
    while scanner.step(9001.0):
        pass
    subjects = []
    while (each := ledger.next_due("mail", "", 9002.0)) is not None:
        message = email.message_from_bytes(each.body, policy=email.policy.default)
        subjects.append(message["Subject"])
        assert "idle" in message.get_content()
        ledger.delivered(each)
    reader.close()
    ledger.close()
    return subjects


@pytest.mark.parametrize(("points", "count"), [("", 2), ("n", 2), ("e", 2), ("p", 0)])
def test_owners_are_warned_of_idle_gpus_whatever_they_want_mail_for(
    tmp_path: Path, points: str, count: int
) -> None:
    with contextlib.closing(Store(str(tmp_path))) as store:
        store.open()
        subjects = idle_mails(store, spec_of(mail_points=points), [WARNED, IDLED])
    assert (
        subjects
        == [
            "gsched: job 1 job does not use its GPUs",
            "gsched: job 1 job was stopped: its GPUs were idle",
        ][:count]
    )


def test_an_idle_time_that_nothing_followed_is_not_told(tmp_path: Path) -> None:
    with contextlib.closing(Store(str(tmp_path))) as store:
        store.open()
        assert idle_mails(store, spec_of(), [structs.replace(IDLED, action="")]) == []


def test_of_an_array_the_first_idle_element_is_told(tmp_path: Path) -> None:
    elements = [element_number(3, index) for index in range(3)]
    facts: list[f.AnyFact] = [structs.replace(WARNED, job=each) for each in elements]
    facts += [structs.replace(IDLED, job=each) for each in elements]
    with contextlib.closing(Store(str(tmp_path))) as store:
        store.open()
        assert len(idle_mails(store, spec_of(), facts)) == 2


def test_a_hook_that_does_not_read_its_input_leaves_no_error(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f'#!/bin/sh\necho "$GSCHED_EVENT" >> {tmp_path}/told\n')
    hook.chmod(0o755)
    body = json_of(notice(name="x" * 200_000))
    each = Waiting(id=1, way="command", lane="command 1", target="", body=body, at_s=0.0, tries=0)
    errors: list[dict[str, object]] = []

    async def deliver() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        ways = Ways(NotifyConfig(command=str(hook)))
        for _ in range(5):
            await ways.deliver(each)
            gc.collect()
        await ways.close()

    asyncio.run(deliver())

    assert (tmp_path / "told").read_text() == "end\n" * 5
    assert errors == []


def test_further_mails_of_an_hour_are_dropped_and_the_last_one_says_so(tmp_path: Path) -> None:
    """From events in a real database; a head that was away for two days tells nothing."""
    store = Store(str(tmp_path))
    store.open()
    spec = spec_of(mail_points="e")

    def end(first: int, count: int, at_s: float) -> None:
        end_jobs(store, spec, range(first, first + count), at_s)

    ledger, _ = open_ledger(str(tmp_path / "notify.db"))
    site = NotifyConfig(smtp_host="mx", mails_per_user_hour=2)
    reader = Reader(store.path)
    scanner = Scanner(reader, ledger, told_by(site), complaints())
    end(1, 1, 1000.0)
    newest = store.reached[0]  # what has happened before the first start of the head is not told
    end(2, 4, 7200.0)
    scanner.begin(newest)  # the head has worked for a moment by then
    end(6, 1, 7200.0 - 2 * 86400.0)
    while scanner.step(7201.0):
        pass

    bodies = []
    while (each := ledger.next_due("mail", "", 7202.0)) is not None:
        bodies.append(each.body)
        ledger.delivered(each)
    assert [body.count(b"Subject: gsched: job ") for body in bodies] == [1, 1]
    assert [b"further ones are dropped" in body for body in bodies] == [False, True]
    assert ledger.counts()["dropped mail"] == (3, "older than a day")
    assert not scanner.step(7203.0)
    reader.close()
    ledger.close()
    store.close()
