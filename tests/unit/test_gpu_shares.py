"""Shares of GPUs as values: one way to count what is held, bounds of what is decoded."""

import msgspec
import pytest

from gsched.model.resources import (
    Chunk,
    GpuShare,
    GpuShareRequest,
    Request,
    Share,
    percent_held,
)
from gsched.model.states import ShareClass


def test_whole_gpus_and_shares_are_counted_alike() -> None:
    part = GpuShare(index=3, percent=40, memory_bytes=2**34, share_class=ShareClass.LOW)
    share = Share(node="n1", cpus=1, gpu_indices=(0, 2), gpu_shares=(part,))

    assert list(share.gpus_held) == [GpuShare(index=0), GpuShare(index=2), part]
    assert percent_held([share, Share(node="n2", cpus=1)]) == 240


@pytest.mark.parametrize("percent", [0, 101, -5])
def test_no_message_holds_a_share_of_less_than_nothing_or_more_than_a_gpu(percent: int) -> None:
    for kind in (GpuShare, GpuShareRequest):
        data = msgspec.json.encode({"index": 0, "percent": percent})
        with pytest.raises(msgspec.ValidationError, match="percent"):
            msgspec.json.decode(data, type=kind)


def test_a_request_without_a_share_is_encoded_as_before() -> None:
    """An older peer, and an older database, see no new field."""
    request = Request(chunks=(Chunk(cpus=2, gpus=1),))

    assert msgspec.json.encode(request) == b'{"chunks":[{"cpus":2,"gpus":1}]}'
    assert request.gpu_share is None


def test_the_share_of_a_request_is_that_of_its_chunk() -> None:
    share = GpuShareRequest(percent=40, share_class=ShareClass.HIGH)

    assert Request(chunks=(Chunk(gpu_share=share),)).gpu_share == share
    assert Request(chunks=(Chunk(gpu_share=share),)).gpus == 0
