"""Requests decoded in pieces say what they say in one piece, and the worst cost little."""

import asyncio
import json
import random
from collections.abc import Callable

import msgspec
import pytest

from gsched.errors import InvalidRequestError
from gsched.model.limits import MAX_REQUEST_BYTES
from gsched.protocol import actions as a
from gsched.protocol import submissions
from gschedd.http import decoding
from gschedd.http.decoding import DIRECT_BYTES, cut, decode, decode_submission, decoded
from gschedd.http.pace import Entrance, Pace

WHERE = "POST /v1/jobs"
PARTS = ('\\"', "\\\\", "\\\\\\\\", "\\u0001", "\\ud83d\\ude00", "\\n", "a", "\u00e4", "\U0001f600")


def job(**fields: object) -> dict[str, object]:
    return {"key": "", "name": "x", "workdir": "/", **fields}


def body_of(*jobs: object, **fields: object) -> bytes:
    return json.dumps({"jobs": jobs, **fields}).encode()


def in_pieces(body: bytes) -> submissions.SubmitRequest:
    async def run() -> submissions.SubmitRequest:
        return await decode_submission(WHERE, body, Pace())

    return asyncio.run(run())


@pytest.mark.parametrize("seed", range(20))
def test_a_text_is_cut_between_two_characters(seed: int) -> None:
    """Each slice is JSON by itself, and together they say what the whole does."""
    rng = random.Random(seed)
    text = "".join(rng.choices(PARTS, k=400)).encode()
    parts: list[str] = []
    begin = 0
    while begin < len(text):
        end = cut(text, begin, begin + rng.randrange(16, 40))
        assert end > begin
        parts.append(decoded(WHERE, b'"' + text[begin:end] + b'"', str))
        begin = end

    assert "".join(parts) == json.loads(b'"' + text + b'"')


@pytest.mark.parametrize(
    "request_of",
    [
        lambda: body_of(*[job(name=f"n{i}") for i in range(500)], dry_run=False),
        lambda: body_of(*[job(name=f"n{i}", account="a" * 99) for i in range(100)], dry_run=True),
        lambda: body_of(
            job(
                script='#!/bin/sh\necho "\u00e4\U0001f600\x01"\n' * 60_000,
                arguments=["a", '"'],
                environment={"A": "b"},
                resources=["nodes=1"],
                holds=["user"],
                training={"iterations": 5, "rates": [[1, 2.0]]},
                umask=7,
            )
        ),
        lambda: body_of(job(script="#" * 100_000), job(arguments=["x" * 100_000])),
    ],
    ids=("many-jobs", "tried", "one-large", "some-large"),
)
def test_a_submission_in_pieces_is_the_same(request_of: Callable[[], bytes]) -> None:
    body = request_of()

    assert len(body) > DIRECT_BYTES
    assert in_pieces(body) == msgspec.json.decode(body, type=submissions.SubmitRequest)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (body_of(*[job()] * 101, dry_run=True), "101 jobs in a dry run"),
        (body_of(*[job()] * 10_001), "10001 jobs in one request"),
        (body_of(), "0 jobs in one request"),
        (body_of(*[job()] * 300, job(umask="x")), "got `str` - at `$.jobs[300].umask`"),
        (body_of(*[job()] * 300, 1), "Expected `object`, got `int` - at `$.jobs[300]`"),
        (body_of(job(script="#" * MAX_REQUEST_BYTES), wrong=1), "unknown field `wrong`"),
        (body_of(job(script="#" * MAX_REQUEST_BYTES, wrong=1)), "unknown field `wrong`"),
        (
            body_of(job(script="#" * 100_000, arguments=["", 1])),
            "Expected `str`, got `int` - at `$.jobs[0].arguments[1]`",
        ),
        (
            body_of(job(script=["#" * 100_000])),
            "Expected `str`, got `array` - at `$.jobs[0].script",
        ),
        (body_of(job(arguments=[""] * 200_000)), "arguments has more than 10000 texts"),
        (body_of(job(environment={f"{i:x}": "" for i in range(50_000)})), "environment has more"),
        (body_of(job(holds=["user"] * 100_000)), "holds has 800000 bytes, 262144 are the limit"),
        (body_of(job(training={"rates": [[1, 1]] * 80_000})), "training has"),
        (
            b'{"jobs":[{"key":"","name":"x","workdir":"/"}],"dry_run":true'
            + b',"jobs":[{"key":"","name":"x","workdir":"/"}]' * 50_000
            + b"}",
            "the request has more than 31000 texts",
        ),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b'{"jobs":[' + b"1" * 2_000_000 + b"]}", "out of range"),
    ],
)
def test_a_large_submission_that_cannot_be_taken_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        in_pieces(body)

    assert words in refused.value.message
    assert len(refused.value.message) < 300


def test_the_schema_of_a_large_job_is_that_of_any_job() -> None:
    """Its fields are decoded by name: one that is new in a job is in a large one, too."""
    large = {each.name for each in msgspec.structs.fields(decoding._LargeJob)}

    assert large == {each.name for each in msgspec.structs.fields(submissions.SubmitJob)}


def test_an_action_with_too_many_ids_is_refused_before_it_is_decoded() -> None:
    body = json.dumps({"action": "delete", "ids": ["1"] * 150_000}).encode()

    async def run() -> None:
        await decode("POST /v1/jobs/actions", body, a.JOB_ACTION, Pace())

    with pytest.raises(InvalidRequestError, match="more than 12000 texts"):
        asyncio.run(run())


def test_of_each_user_one_request_begins_in_a_turn_of_the_loop() -> None:
    """However many connections one has: somebody else's one request is not behind all of them."""

    async def run() -> list[int]:
        entrance, order = Entrance(), list[int]()

        async def ask(uid: int) -> None:
            await entrance.enter(uid)
            order.append(uid)

        many = [asyncio.create_task(ask(1)) for _ in range(50)]
        many[5].cancel()
        one = asyncio.create_task(ask(2))
        await asyncio.gather(*many, one, return_exceptions=True)
        await ask(1)
        return order

    order = asyncio.run(run())

    assert order.index(2) <= 2
    assert order.count(1) == 50
