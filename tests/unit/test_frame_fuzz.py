"""Whatever a user or a job states, each message that comes of it can be read by its receiver."""

import json

import msgspec.inspect as mi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsched.protocol import submissions
from tests.support.frame_fuzz import JOB, KINDS, FrameFuzz


def numeric_fields() -> list[str]:
    """Return the fields of a submission that are one number."""
    found = mi.type_info(submissions.SubmitJob)
    assert isinstance(found, mi.StructType)
    names = []
    for field in found.fields:
        types = field.type.types if isinstance(field.type, mi.UnionType) else (field.type,)
        if any(isinstance(each, mi.IntType | mi.FloatType) for each in types):
            names.append(field.name)
    return names


EXTREMES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**70), 2**70),
    st.sampled_from([1e300, 1e301, -1e301, 1.7e308, 2**53, 2**53 + 1, 2**63, -1, 0, 1, 60]),
)
STATED = st.dictionaries(st.sampled_from(numeric_fields()), EXTREMES, max_size=2)


@pytest.mark.parametrize("number", [1e300, 1e301, 1.7e308, 2**53 + 1, 2**63, -1])
@pytest.mark.parametrize("name", numeric_fields())
def test_each_number_of_a_job_is_refused_or_its_messages_can_be_read(
    name: str, number: float
) -> None:
    fuzz = FrameFuzz(0)
    for kind in KINDS:
        fuzz.submit(json.dumps({"jobs": [JOB | kind | {name: number}]}).encode())
    assert fuzz.faults == []


@settings(max_examples=200)
@given(kind=st.sampled_from(KINDS), stated=STATED)
def test_a_job_with_extreme_numbers_is_refused_or_its_messages_can_be_read(
    kind: dict[str, object], stated: dict[str, float]
) -> None:
    fuzz = FrameFuzz(0)
    fuzz.submit(json.dumps({"jobs": [JOB | kind | stated]}).encode())
    assert fuzz.faults == []


@pytest.mark.parametrize("seed", [1, 2])
def test_fuzzed_requests_and_lines_make_no_frame_that_its_receiver_cannot_read(seed: int) -> None:
    fuzz = FrameFuzz(seed)
    fuzz.run(3000)

    assert fuzz.faults == []
    for name in ("Launch", "StopAttempt", "Signal", "StepRefused"):
        assert fuzz.counts[f"to node: {name}"] > 0
    for name in ("Heartbeat", "TrainingProgress", "Checkpointed", "StepRequest"):
        assert fuzz.counts[f"to head: {name}"] > 0
