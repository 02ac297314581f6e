"""sreport's columns and figures, from rows that a person can add up."""

import pytest
from msgspec import structs

from gsched.cli.slurm.errors import SlurmError
from gsched.cli.slurm.moments import past_moment
from gsched.cli.slurm.options import parsed
from gsched.cli.slurm.sreport import form_of, period_of, report_lines, wish_of
from gsched.protocol.reports import HeldReply, HeldRow, NodeTime

HOUR_S = 3600.0
REPLY = HeldReply(
    server="test",
    since_s=0.0,
    until_s=86400.0,
    rows=[
        HeldRow(user="ann", account="physics", queue="batch", gpu_type="h100", cpus=64, runs=2,
                cpu_s=60 * HOUR_S, gpu_s=6 * HOUR_S),
        HeldRow(user="bob", account="physics", queue="batch", gpu_type="", cpus=8, runs=9,
                cpu_s=20 * HOUR_S),
        HeldRow(user="bob", account="", queue="batch", gpu_type="", cpus=2000, runs=1,
                cpu_s=10 * HOUR_S),
    ],
    offered=NodeTime(cpu_s=180 * HOUR_S, gpu_s=12 * HOUR_S, down_cpu_s=20 * HOUR_S),
)  # fmt: skip


def sreport(*words: str) -> list[str]:
    """Return the lines of a report; cells that are cut or padded are stripped at their ends."""
    options, operands = parsed(words, "sreport")
    form, named = form_of(operands)
    return list(report_lines(form, wish_of(options, named), REPLY, options))


def test_utilization_adds_up_to_what_was_reported() -> None:
    lines = sreport("-P", "-t", "Hours", "cluster", "utilization")

    assert lines[1].startswith("Cluster Utilization 1970-01-01T")
    assert lines[1].endswith("(86400 secs)")
    assert lines[2] == "Usage reported in CPU Hours"
    assert lines[4] == "Cluster|Allocated|Down|PLND Down|Idle|Planned|Reported"
    assert lines[5] == "test|90|20|0|90|0|200"
    (percent,) = sreport("-n", "--parsable2", "-t", "percent", "cluster", "util")
    assert percent == "test|45.00%|10.00%|0.00%|45.00%|0.00%|100.00%"
    (both,) = sreport("-n", "-p", "-t", "hourper", "-T", "gres/gpu", "cluster", "Util")
    assert both.startswith("test|gres/gpu|6(50.00%)|")
    assert both.endswith("|12(100.00%)|")


def test_users_and_accounts() -> None:
    top = sreport("-n", "-P", "-t", "hours", "user", "top", "topcount=2")
    assert [line.split("|")[1:5:2] + line.split("|")[4:5] for line in top] == [
        ["ann", "physics", "60"],
        ["bob", "physics", "20"],
    ]
    lines = sreport("-n", "-P", "-t", "hours", "cluster", "AccountUtilizationByUser")
    assert [line.split("|")[1:3] + line.split("|")[4:5] for line in lines] == [
        ["root", "", "90"],
        ["physics", "", "80"],
        ["physics", "ann", "60"],
        ["physics", "bob", "20"],
        ["(none)", "", "10"],
        ["(none)", "bob", "10"],
    ]
    only = sreport("-n", "-P", "-t", "hours", "user", "top", "users=bob", "accounts=physics")
    assert len(only) == 1
    assert sreport("-n", "-P", "-t", "hours", "user", "top", "User=bob", "account=physics") == only


def test_control_characters_of_users_do_not_reach_the_terminal() -> None:
    form, named = form_of(["user", "top"])
    rows = [structs.replace(REPLY.rows[0], account="a\x1b[31mb")]
    (line,) = report_lines(
        form,
        wish_of({}, named),
        structs.replace(REPLY, rows=rows),
        {"noheader": "", "parsable": ""},
    )
    assert "|a\\x1b[31mb|" in line


def test_sizes_of_jobs_by_account() -> None:
    lines = sreport("-n", "-P", "-t", "hours", "job", "sizesbyaccount")

    assert lines == [
        "test|physics|20|60|0|0|0|88.89%",
        "test|(none)|0|0|0|0|10|11.11%",
    ]


def test_columns_stand_below_their_titles() -> None:
    _, _, _, _, titles, rule, *lines = sreport("user", "TopUsage")

    widths = [len(each) for each in rule.split()]
    assert len(titles) == len(rule) == sum(widths) + len(widths)
    assert all(len(line) == len(rule) for line in lines)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("cluster",), "no report"),
        (("cluster", "nonsense"), "no report cluster nonsense; valid: cluster Utilization"),
        (("-t", "weeks", "cluster", "util"), "unknown time format weeks"),
        (("-T", "energy", "cluster", "util"), "unknown TRES energy"),
        (("user", "top", "topcount=x"), "invalid topcount x"),
        (("user", "top", "format=Login"), "unknown setting format=; valid: start=, end=, users="),
    ],
)
def test_what_sreport_refuses(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(SlurmError, match=text):
        sreport(*words)


def test_the_period_is_yesterday_unless_stated() -> None:
    now_s = past_moment("2026-11-27T01:30", now_s=1_795_000_000.0)

    def moment(text: str) -> float:
        return past_moment(text, now_s=now_s)

    assert period_of({}, now_s) == (moment("2026-11-26"), moment("2026-11-27"))
    stated = {"start": "2026-11-01", "end": "2026-11-03"}
    assert period_of(stated, now_s) == (moment("2026-11-01"), moment("2026-11-03"))
    with pytest.raises(
        SlurmError, match=r"from 2026-11-03T00:00:00 to 2026-11-01T00:00:00 is empty: .*end=now"
    ):
        period_of({"start": "2026-11-03", "end": "2026-11-01"}, now_s)
