"""What a plan gives to a job that requested one place must be just that."""

import pytest
from msgspec import structs

from gsched.model.resources import Chunk, Request, Share
from gschedd.plan.space import Spaces
from gschedd.plan.validate import covers
from tests.support.spaces import space

REQUESTED = Request(chunks=(Chunk(cpus=2, memory_bytes=64),))
GIVEN = Share(node="n1", cpus=2, memory_bytes=64)


def test_just_what_was_requested_is_taken() -> None:
    spaces = Spaces({"n1": space("n1", cpus=8, memory_bytes=1000)})

    assert covers(REQUESTED, (GIVEN,), spaces) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpus": 1},
        {"cpus": 3},
        {"memory_bytes": 63},
        {"slots": 2},
        {"gpu_indices": (0,)},
        {"exclusive": True},
        {"generic": (("licence", 1),)},
    ],
)
def test_less_more_or_something_else_is_refused(wrong: dict[str, object]) -> None:
    spaces = Spaces({"n1": space("n1", cpus=8, memory_bytes=1000)})
    given = structs.replace(GIVEN, **wrong)

    assert "request" in covers(REQUESTED, (given,), spaces)
