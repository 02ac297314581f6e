"""The documents of --json have one shape, whatever the values are."""

import io
import json

import msgspec

from gsched.cli.common import print_json
from gsched.protocol.api import JobList, JobRow, OutcomeRow


def printed(document: msgspec.Struct | dict[str, object]) -> dict[str, object]:
    out = io.StringIO()
    print_json(document, out=out)
    decoded = json.loads(out.getvalue())
    assert isinstance(decoded, dict)
    return decoded


def test_fields_are_there_also_when_they_have_their_default() -> None:
    outcome = OutcomeRow(kind="exited", exit_status=0, shell_status=0, exit_code=0)
    row = JobRow(
        id=1,
        name="train",
        user="alice",
        queue="batch",
        state="done",
        letter="C",
        submitted_s=1.0,
        cpus=1,
        places=1,
        outcome=outcome,
    )
    said = printed(JobList(server="head", now_s=2.0, jobs=(row,)))

    assert list(said) == ["schema", "server", "now_s", "jobs", "errors"]
    assert said["errors"] == {}
    (job,) = said["jobs"]  # type: ignore[misc]  # a list of one
    assert set(job) == set(JobRow.__struct_fields__)
    assert (job["gpus"], job["walltime_s"], job["nodes"]) == (0, None, [])
    assert set(job["outcome"]) == set(OutcomeRow.__struct_fields__)


def test_nothing_is_a_document_too() -> None:
    assert printed({}) == {"schema": 1}
