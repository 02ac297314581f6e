"""Resource lists: what each says, what is refused, and that they read back as they were."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gsched.errors import BadResourceError
from gsched.model.request import format_resources, parse_resources
from gsched.model.resources import Chunk, Request
from gsched.model.states import Placement
from tests.support.spaces import requests

GIB = 1024**3
SCATTER, FREE, PACK = Placement.SCATTER, Placement.FREE, Placement.PACK


def read(*texts: str, exclusive: bool = False, warn_unknown: bool = False) -> Request:
    return parse_resources(
        texts, generic_names=["licence"], exclusive=exclusive, warn_unknown=warn_unknown
    ).request


@pytest.mark.parametrize(
    ("text", "chunks", "placement"),
    [
        ("", (Chunk(),), SCATTER),
        (" , ", (Chunk(),), SCATTER),
        ("nodes=3", (Chunk(count=3),), SCATTER),
        ("nodes=2:ppn=4:gpus=1", (Chunk(count=2, cpus=4, gpus=1),), SCATTER),
        ("nodes=1:gpus=2:exclusive_process", (Chunk(gpus=2),), SCATTER),
        ("nodes=n1+2:red:blue", (Chunk(features=("n1",)), Chunk(count=2, features=("blue", "red"))),
         SCATTER),
        ("nodes=1:gpus=1:gpu_type=a100", (Chunk(gpus=1, gpu_type="a100"),), SCATTER),
        ("nodes=2,gpus=3", (Chunk(count=2, gpus=3),), SCATTER),
        ("nodes=2,place=pack", (Chunk(count=2),), PACK),
        ("nodes=2,place=shared", (Chunk(count=2),), SCATTER),
        ("ncpus=4", (Chunk(cpus=4),), SCATTER),
        ("ncpus=4,ngpus=2", (Chunk(cpus=4, gpus=2),), SCATTER),
        ("gpus=1", (Chunk(gpus=1),), SCATTER),
        ("procs=5", (Chunk(count=5),), FREE),
        ("procs=5,place=pack", (Chunk(count=5),), PACK),
        ("select=2:ncpus=3:ngpus=1:mem=1gb",
         (Chunk(count=2, cpus=3, gpus=1, memory_bytes=GIB, ranks=1),), FREE),
        ("select=ncpus=2:mpiprocs=2", (Chunk(cpus=2, threads=1),), FREE),
        ("select=ncpus=2:mpiprocs=2:ompthreads=2", (Chunk(cpus=2),), FREE),
        ("select=ncpus=8:mpiprocs=2", (Chunk(cpus=8, ranks=2, threads=4),), FREE),
        ("select=ncpus=8:ompthreads=3", (Chunk(cpus=8, ranks=1, threads=3),), FREE),
        ("select=1:host=n1+1:vnode=n2", (Chunk(features=("n1",)), Chunk(features=("n2",))), FREE),
        ("select=1:gpus=1:gpu_model=a100", (Chunk(gpus=1, gpu_type="a100"),), FREE),
        ("select=2,place=scatter", (Chunk(count=2),), SCATTER),
        ("select=2,place=vscatter", (Chunk(count=2),), SCATTER),
        ("select=2:licence=1", (Chunk(count=2, generic=(("licence", 1),)),), FREE),
        ("nodes=2,licence=3", (Chunk(count=2, generic=(("licence", 3),)),), SCATTER),
        ("select=1+1:licence=1,licence=2",
         (Chunk(generic=(("licence", 2),)), Chunk(generic=(("licence", 1),))), FREE),
        ("nodes=2,mem=4gb", (Chunk(count=2, memory_bytes=2 * GIB),), SCATTER),
        ("nodes=3,mem=10b", (Chunk(count=3, memory_bytes=4),), SCATTER),
        ("nodes=1:ppn=4,pmem=1gb", (Chunk(cpus=4, memory_bytes=4 * GIB),), SCATTER),
    ],
)  # fmt: skip
def test_a_list_is_read(text: str, chunks: tuple[Chunk, ...], placement: Placement) -> None:
    """Torque's nodes=, OpenPBS's select=, and single terms."""
    assert read(text) == Request(chunks=chunks, placement=placement)


def test_later_texts_win_term_by_term() -> None:
    """-l nodes=1 -l walltime=… -l nodes=2 asks for two."""
    parsed = parse_resources(["nodes=1,walltime=10", "nodes=2", "walltime=20"], generic_names=())

    assert (parsed.request.places, parsed.walltime_s) == (2, 20)


@pytest.mark.parametrize("place", ["excl", "exclhost", "scatter:excl"])
def test_exclusive_keeps_the_layout(place: str) -> None:
    """place=excl says nothing about how places are laid over nodes."""
    assert read(f"nodes=2,place={place}") == Request(chunks=(Chunk(count=2),), exclusive=True)


def test_exclusive_can_come_from_the_option() -> None:
    """gsub's own switch."""
    assert read("nodes=2", exclusive=True).exclusive


@pytest.mark.parametrize(
    ("text", "walltime_s", "change_s"),
    [
        ("walltime=1:00:00", 3600, None),
        ("walltime=90", 90, None),
        ("walltime=+1:00", None, 60),
        ("walltime=-1:00", None, -60),
        ("walltime=+30", None, 30),
    ],
)
def test_a_walltime_is_a_limit_or_a_change(
    text: str, walltime_s: float | None, change_s: float | None
) -> None:
    """A sign in front of a time changes the one that is there."""
    parsed = parse_resources([text], generic_names=())

    assert (parsed.walltime_s, parsed.walltime_change_s) == (walltime_s, change_s)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("nods=1", "unknown resource 'nods'", "did you mean 'nodes'?"),
        ("apples=1", "unknown resource 'apples'", "valid resources: "),
        ("nodes", "resource nodes has no value", "write nodes=VALUE"),
        ("mem=", "resource mem has no value", ""),
        ("nodes=1,select=1", "are mutually exclusive", "give one"),
        ("nodes=1,ncpus=2", "nodes= cannot be combined with ncpus=", "nodes=N:ppn=CPUS"),
        ("nodes=1,procs=2", "nodes= cannot be combined with", ""),
        ("nodes=1:gpus=1,gpus=2", "requested twice", "not both"),
        ("procs=2,gpus=1", "procs= cannot be combined with other", ""),
        ("procs=2,ncpus=1", "procs= cannot be combined with other", ""),
        ("nodes=0", "must be at least 1", ""),
        ("nodes=-1", "must be at least 1", ""),
        ("nodes=1:ppn=x", "must be a whole number", ""),
        ("nodes=1:ppn=1.5", "must be a whole number", ""),
        ("nodes=1:ppn=9999999999", "must be at most 999999999", ""),
        ("nodes=1" + 23 * "0", "must be at most 999999999", ""),
        ("nodes=1:cores=4", "unknown node attribute 'cores'", "valid: ppn=P"),
        ("nodes=1:", "invalid node count, host or feature ''", ""),
        ("nodes=1:4", "invalid node count, host or feature '4'", ""),
        ("nodes=1:gpus=1:prohibited", "does not let any job run", ""),
        ("nodes=100001", "more than 100000 chunks", "fewer"),
        ("select=1:cores=4", "unknown chunk attribute 'cores=4'", "select=N:ncpus=C"),
        ("select=1:red", "unknown chunk attribute 'red'", ""),
        ("select=1:mem=x", "invalid size", ""),
        ("select=1,place=everywhere", "unknown placement 'everywhere'", "valid: free, pack"),
        ("walltime=soon", "walltime=soon: invalid time 'soon'", "MM:SS, seconds"),
        ("walltime=+soon", "walltime=+soon: invalid time 'soon'", ""),
        ("walltime=0", "greater than zero", ""),
    ],
)
def test_a_mistake_is_named(text: str, message: str, hint: str) -> None:
    """What was written, what is wrong with it, what to write."""
    with pytest.raises(BadResourceError) as refused:
        read(text)

    assert message in refused.value.message
    assert hint in refused.value.hint


def test_unknown_terms_can_be_a_warning() -> None:
    """Where the site says so; Torque's unenforced limits always are."""
    parsed = parse_resources(["apples=1,vmem=1gb"], generic_names=(), warn_unknown=True)

    assert parsed.warnings == (
        "unknown resource 'apples': ignored",
        "resource vmem is understood but not enforced",
    )


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(), "nodes=1:ppn=1"),
        (Request(exclusive=True), "nodes=1:ppn=1,place=excl"),
        (Request(placement=PACK, exclusive=True), "select=1:ncpus=1,place=pack:excl"),
        (
            Request(chunks=(Chunk(gpus=1, gpu_type="a100", memory_bytes=GIB, features=("red",)),)),
            "nodes=1:ppn=1:gpus=1:gpu_type=a100:red,mem=1gb",
        ),
        (
            Request(chunks=(Chunk(memory_bytes=GIB), Chunk(memory_bytes=1))),
            "select=1:ncpus=1:mem=1gb+1:ncpus=1:mem=1b,place=scatter",
        ),
        (Request(chunks=(Chunk(features=("10.0.0.1",)),)),
         "select=1:ncpus=1:host=10.0.0.1,place=scatter"),
        (Request(chunks=(Chunk(features=("shared",)),)),
         "select=1:ncpus=1:host=shared,place=scatter"),
    ],
)  # fmt: skip
def test_a_request_is_written_in_pbs_words(request_: Request, text: str) -> None:
    """nodes= where it can say it, else select=."""
    assert format_resources(request_, None) == text
    assert format_resources(request_, 3600) == text + ",walltime=01:00:00"


@given(request_=requests(largest=9, places=30), counted=st.booleans())
def test_a_request_reads_back_as_it_was(request_: Request, *, counted: bool) -> None:
    """galter writes the present request and reads it with the change: nothing else may change."""
    if not counted:
        chunks = tuple(structs.replace(chunk, generic=()) for chunk in request_.chunks)
        request_ = structs.replace(request_, chunks=chunks)

    assert read(format_resources(request_, None)) == request_


@given(st.text(alphabet="nodesselctpmg=:+,0123456789 -.x", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Never anything but a request or a refusal."""
    places = 1
    with contextlib.suppress(BadResourceError):
        places = read(text).places

    assert places >= 1


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("select=1:ncpus=2,gpus=1", "select=N:ngpus=1"),
        ("gpus=1,select=2", "select=N:ngpus=1"),
        ("select=1,ngpus=2", "select=N:ngpus=2"),
        ("select=1,ncpus=8", "select=N:ncpus=8"),
        ("select=1,procs=8", "select=N:ncpus=8"),
    ],
)
def test_counts_beside_select_are_refused(text: str, hint: str) -> None:
    """They had no effect, and a job that requested a GPU in this way got none."""
    with pytest.raises(BadResourceError, match="cannot be combined with select=") as caught:
        parse_resources([text], generic_names=())
    assert hint in caught.value.hint


@pytest.mark.parametrize("text", ["mem=512", "pmem=512", "select=1:mem=512", "mem=1048575"])
def test_memory_without_a_unit_that_no_program_could_run_in_is_refused(text: str) -> None:
    """Plain numbers are bytes, as in Torque; who writes so few has forgotten the unit."""
    with pytest.raises(BadResourceError) as caught:
        parse_resources([text], generic_names=())

    number = text.rpartition("=")[2]
    assert f"mem={number} requests {number} bytes" in caught.value.message
    assert f"mem={number}mb?" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("mem=1048576", 1 << 20), ("mem=512b", 512), ("mem=1kb", 1024)]
)
def test_memory_is_taken_at_its_word_otherwise(text: str, size_bytes: int) -> None:
    assert parse_resources([text], generic_names=()).request.memory_bytes == size_bytes
