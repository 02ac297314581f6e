"""The report of a host: its accounts, also where a name service does not answer."""

import os
import pwd
from pathlib import Path

import pytest

from gsched import host_report as module
from gsched import trust
from gsched.host_report import host_report


def test_it_has_the_accounts_that_people_use() -> None:
    report = host_report(5.0)
    least = trust.uid_min()

    assert report.users == {
        each.pw_name: each.pw_uid for each in pwd.getpwall() if each.pw_uid >= least
    }
    assert report.sent_s == 5.0


def test_a_name_service_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process waits for it, so that gnode serves others meanwhile."""
    program = tmp_path / "getent"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(module, "ACCOUNTS_S", 0.1)

    report = host_report(5.0)

    assert (report.users, report.groups) == ({}, {})


def test_a_host_without_getent_reports_no_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert host_report(5.0).users == {}
