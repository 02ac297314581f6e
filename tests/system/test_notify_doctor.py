"""What gsched doctor says of mail and hooks."""

import socket
from pathlib import Path

import pytest
from msgspec import structs

from gsched.cli.local.findings import Finding, Level
from gsched.cli.local.head_checks import check_notify
from gsched.cli.local.notify_checks import check_idle_warnings, check_ways
from gsched.config.idle_gpus import IdleGpusConfig, IdleQueueConfig
from gsched.config.notify import NotifyConfig
from gsched.config.tables import Config
from gsched.protocol.api import NotifyRow
from tests.support.mailbox import HANG, MailServer, WebServer, serving


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_a_site_without_notifications_has_no_findings() -> None:
    assert check_ways(NotifyConfig()) == []
    assert check_notify(None) == []


def test_warnings_of_idle_gpus_without_mail_are_found() -> None:
    queue = IdleQueueConfig(name="batch", action="warn")
    config = Config(idle_gpus=IdleGpusConfig(queue=(queue,)))
    assert levels(check_idle_warnings(config)) == [Level.WARN]
    assert check_idle_warnings(Config()) == []
    mails = NotifyConfig(smtp_host="mx")
    assert check_idle_warnings(structs.replace(config, notify=mails)) == []


def test_programs_are_there_executable_and_not_for_all_to_write(tmp_path: Path) -> None:
    program = tmp_path / "hook"
    site = NotifyConfig(command=str(program))
    (gone,) = check_ways(site)
    assert (gone.level, "no such file" in gone.text) == (Level.FAIL, True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    assert "cannot be run" in check_ways(site)[0].text
    program.chmod(0o757)
    assert "every user" in check_ways(site)[0].text
    program.chmod(0o755)
    assert levels(check_ways(site)) == [Level.OK]


def test_a_password_is_private(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("x")
    site = NotifyConfig(smtp_password_file=str(path))
    path.chmod(0o644)
    assert check_ways(site)[0].todo == f"chmod 600 {path}"
    path.chmod(0o600)
    assert levels(check_ways(site)) == [Level.OK]


def test_servers_answer_refuse_or_hang() -> None:
    """Nothing is sent to any of them."""
    with serving(MailServer()) as mails, serving(WebServer()) as web:
        site = NotifyConfig(smtp_host="127.0.0.1", smtp_port=mails.port, url=f"{web.origin}/x")
        assert levels(check_ways(site)) == [Level.OK, Level.OK]
        assert (mails.messages, web.tries) == ([], 0)
        mails.mood = HANG
        hanging = NotifyConfig(smtp_host="127.0.0.1", smtp_port=mails.port, timeout_s=0.2)
        assert levels(check_ways(hanging)) == [Level.FAIL]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    site = NotifyConfig(smtp_host="127.0.0.1", smtp_port=port, url=f"http://127.0.0.1:{port}/")
    assert levels(check_ways(site)) == [Level.FAIL, Level.WARN]


@pytest.mark.parametrize(
    ("row", "level", "text"),
    [
        (NotifyRow(sent={"mail": 2, "url": 1}), Level.OK, "3 notifications sent"),
        (NotifyRow(trouble="has ended with exit status 1"), Level.FAIL, "exit status 1"),
        (
            NotifyRow(down={"mail": "refused"}, waiting={"mail": 1}),
            Level.WARN,
            "mail: 1 notification waiting; the last try failed: refused",
        ),
        (
            NotifyRow(dropped={"user-url": 1}, reasons={"user-url": "HTTP status 404"}),
            Level.WARN,
            "URLs of users: 1 notification was dropped; the last: HTTP status 404",
        ),
    ],
)
def test_what_the_head_says_is_told(row: NotifyRow, level: Level, text: str) -> None:
    (finding,) = check_notify(row)
    assert finding.level is level
    assert text in finding.text
