"""What the doctor says of sshd's lines for gnode.pam."""

import re
from pathlib import Path

import pytest

from gsched.cli.local.findings import Level
from gsched.cli.local.login_checks import check_login

RUN = "pam_exec.so quiet stdout /opt/gsched/bin/python -I -m gnode.pam"
GOOD = f"@include common-account\naccount required {RUN}\nsession required {RUN}\n"


def found(
    directory: Path,
    service: str,
    *,
    common: str = "",
    sshd: str = "UsePAM yes\n",
    private_tmp: bool = False,
) -> str:
    """Return the findings about these files, as one text."""
    (directory / "sshd").write_text(service)
    (directory / "common-account").write_text(common)
    (directory / "sshd_config").write_text(sshd)
    findings = check_login(directory, directory / "sshd_config", private_tmp=private_tmp)
    return "\n".join(f"{each.level} {each.text}" for each in findings)


def test_nothing_is_said_of_a_machine_that_does_not_use_it(tmp_path: Path) -> None:
    assert check_login(tmp_path / "none", tmp_path / "none") == []
    assert found(tmp_path, "account required pam_unix.so\n") == ""


def test_lines_that_do_it_are_good_wherever_they_stand(tmp_path: Path) -> None:
    assert found(tmp_path, GOOD).startswith(Level.OK)
    split = GOOD.replace(f"account required {RUN}\n", "")
    assert found(tmp_path, split, common=f"account requisite {RUN}\n").startswith(Level.OK)
    inside = split.replace("@include common-account", "account include common-account")
    assert found(tmp_path, inside, common=f"account required {RUN}\n").startswith(Level.OK)


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (GOOD.replace(f"session required {RUN}", ""), "FAIL.*sessions are in no job"),
        (GOOD.replace("account required", "account optional"), "FAIL.*can log in"),
        (GOOD.replace(" -I", ""), "FAIL.*without -I"),
        (GOOD + "-session optional pam_systemd.so\n", "warn.*pam_systemd"),
        (GOOD + "@include sshd\n", "ok"),
        (GOOD + "session required pam_env.so user_readenv=0\n", "ok"),
        (GOOD + "session required pam_env.so # user_readenv=1\n", "ok"),
        (GOOD + "session required pam_env.so envfile=/x user_readenv=1\n", "FAIL.*user_readenv"),
        (GOOD + "-auth [default=ignore]  /lib/pam_env.so user_readenv=1\n", "FAIL.*user_readenv"),
    ],
)
def test_lines_that_do_not_are_named(tmp_path: Path, service: str, words: str) -> None:
    assert re.search(words, found(tmp_path, service)), found(tmp_path, service)


def test_variables_of_users_are_found_in_included_files(tmp_path: Path) -> None:
    shared = "account required pam_permit.so\nsession required pam_env.so user_readenv=1\n"
    assert "user_readenv" in found(tmp_path, GOOD, common=shared)


def test_an_sshd_without_pam_is_named(tmp_path: Path) -> None:
    for sshd in ("", "usepam no\nUsePAM yes\n", "#UsePAM yes\n"):
        assert "FAIL" in found(tmp_path, GOOD, sshd=sshd)
    assert "FAIL" not in found(tmp_path, GOOD, sshd="UsePAM=yes\n")


@pytest.mark.parametrize(
    ("service", "level"),
    [
        (GOOD, Level.WARN),
        (GOOD.replace("session", "session required pam_namespace.so\nsession", 1), Level.OK),
        (GOOD + "session required pam_namespace.so\n", Level.WARN),
    ],
)
def test_sessions_that_cannot_see_the_tmp_of_their_job_are_named(
    tmp_path: Path, service: str, level: Level
) -> None:
    assert found(tmp_path, service, private_tmp=True).startswith(level)
    assert found(tmp_path, service).startswith(Level.OK)
