"""The documents of --json have one shape, whatever the values are."""

import io

import msgspec

from gsched.cli.common import MOMENTS, print_json
from gsched.protocol.job_rows import JobList, JobRow, OutcomeRow


class Printed(msgspec.Struct):
    """What a program reads of a list of jobs."""

    schema: int
    server: str
    now_s: float
    jobs: list[dict[str, object]]
    errors: dict[str, object]


def printed(document: msgspec.Struct | dict[str, object]) -> str:
    out = io.StringIO()
    print_json(document, out=out)
    return out.getvalue()


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
    said = msgspec.json.decode(
        printed(JobList(server="head", now_s=2.0, jobs=(row,))), type=Printed
    )

    assert (said.schema, said.errors) == (1, {})
    (job,) = said.jobs
    moments = {name for name in JobRow.__struct_fields__ if name in MOMENTS}
    assert set(job) == {*JobRow.__struct_fields__, "job_id"} | {f"{n[:-2]}_iso" for n in moments}
    assert (job["gpus"], job["walltime_s"], job["nodes"]) == (0, None, [])
    ended = job["outcome"]
    assert isinstance(ended, dict)
    assert set(ended) == set(OutcomeRow.__struct_fields__)


def test_fields_are_in_one_order_in_each_process() -> None:
    """That of a set of texts is another one in each."""
    row = JobRow(id=1, name="a", user="b", queue="c", state="queued", letter="Q", submitted_s=1.0,
                 cpus=1, places=1)  # fmt: skip
    said = msgspec.json.decode(
        printed(JobList(server="head", now_s=2.0, jobs=(row,))), type=Printed
    )
    moments = [name for name in said.jobs[0] if name.endswith("_iso")]

    assert len(moments) > 3
    assert moments == sorted(moments)


def test_nothing_is_a_document_too() -> None:
    assert printed({}) == '{"schema":1}\n'
