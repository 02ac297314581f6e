"""--json FIELDS, --jq and --template of commands that print lists, and operands that are ranges."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsched.model.ids import element_number
from gsched.protocol import node_rows
from gsched.protocol.job_rows import StartRow
from tests.support.commands import run_command
from tests.support.fake_api import NOW_S, FakeApi, make_row, serve
from tests.support.in_process import run_here

pytestmark = pytest.mark.timeout(60)
START = StartRow(expected_s=NOW_S + 60, early_s=NOW_S + 30, late_s=NOW_S + 600, scenarios=20)


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Path]:
    fake = FakeApi(tmp_path)
    fake.add(make_row(1, start=START, predicted_start_s=NOW_S + 60))
    fake.add(make_row(element_number(2, 7), name="part {x}"))
    fake.nodes = [
        node_rows.NodeRow(
            name="jobs", state="up", cpus=4, cpus_free=1, memory_bytes=8, memory_free_bytes=4
        )
    ]
    with serve(fake.application(), tmp_path / "s"):
        yield tmp_path / "s"


def printed(head: Path, *words: str) -> str:
    ran = run_here(*words, head=head)
    assert (ran.status, ran.stderr) == (0, ""), ran
    return ran.stdout


@pytest.mark.parametrize("form", ["--json job_id,start.late_s", "--json=job_id,start.late_s"])
def test_json_chooses_fields_of_each_row(head: Path, form: str) -> None:
    document = json.loads(printed(head, "gstat", *form.split()))

    assert document["schema"] == 1
    assert document["jobs"] == [
        {"job_id": "1", "start.late_s": NOW_S + 600},
        {"job_id": "2[7]", "start.late_s": None},
    ]


def test_the_whole_document_has_ids_as_users_write_them_and_moments_as_text(head: Path) -> None:
    first, second = json.loads(printed(head, "gstat", "--json"))["jobs"]

    assert (second["id"], second["job_id"]) == (element_number(2, 7), "2[7]")
    assert first["submitted_s"] == NOW_S - 100
    assert first["submitted_iso"].startswith("2026-09-21T")
    assert first["started_iso"] is None
    assert first["start"]["expected_iso"] > first["submitted_iso"]


def test_an_operand_behind_json_stays_one(head: Path) -> None:
    """Job numbers are no fields; of a node called ``jobs`` only the list could be meant."""
    assert [row["id"] for row in json.loads(printed(head, "gstat", "--json", "1"))["jobs"]] == [1]
    nodes = json.loads(printed(head, "gnodes", "--json", "name,state", "jobs"))["nodes"]
    assert nodes == [{"name": "jobs", "state": "up"}]


def test_details_are_chosen_by_the_fields_of_the_job_or_of_its_row(head: Path) -> None:
    jobs = json.loads(printed(head, "gstat", "-f", "1", "--json", "workdir,name"))["jobs"]

    assert jobs == [{"workdir": "/data", "name": "train"}]


def test_a_template_prints_a_line_for_each_row(head: Path) -> None:
    form = r"{job_id:<6}{name}\t{{{gpus:>3}}} {started_s}"

    assert printed(head, "gstat", "--template", form) == (
        "1     train\t{  0}\n2[7]  part {x}\t{  0}\n"
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="the program jq is not installed")
def test_jq_filters_the_document(head: Path) -> None:
    assert printed(head, "gstat", "--jq", ".jobs[].job_id") == "1\n2[7]\n"
    chosen = printed(head, "gstat", "--json", "user", "--jq", '.jobs[0]|keys|join(",")')
    assert chosen == "user\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--json", "nmae"), "unknown field 'nmae'"),
        (("--json=state,start.x,colour",), "unknown field 'colour'"),
        (("--template", "{id"), "cannot be read"),
        (("--template", "{name:d}"), "Unknown format code"),
        (("--template", "{id}", "--jq", "."), "mutually exclusive"),
        (("--jq",), "requires an argument"),
    ],
)
def test_mistakes_are_told_as_json(head: Path, words: tuple[str, ...], text: str) -> None:
    ran = run_here("gstat", *words, head=head)

    assert ran.status == 2
    error = json.loads(ran.stderr)["error"]
    assert text in error["message"]
    assert error["code"] == "usage"


def test_without_jq_it_says_what_to_do(head: Path, tmp_path: Path) -> None:
    ran = run_command("gstat", "--jq", ".", head=head, env={"PATH": str(tmp_path)})

    assert ran.status == 2
    assert "the program jq, which is not installed" in ran.stderr


def test_an_operand_may_be_a_range_of_elements(head: Path) -> None:
    """Each is shown by itself; one that is unknown is told."""
    ran = run_here("gstat", "2[6-7]", "--json", "job_id", head=head)

    assert [row["job_id"] for row in json.loads(ran.stdout)["jobs"]] == ["2[7]"]
