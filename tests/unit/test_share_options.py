"""--gpu-share and --share-class: on the command line, in directives, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.cli.submit.options import merged
from gsched.cli.submit.stated import StatedOptions
from gsched.errors import BadResourceError, GschedError
from gsched.model.gpu_share_text import format_gpu_share, parse_gpu_share
from gsched.model.request import format_resources, parse_resources
from gsched.model.resources import GpuShareRequest, Request
from gsched.model.states import ShareClass

GIB = 2**30


def read(*texts: str) -> Request:
    return parse_resources(texts, generic_names=()).request


@pytest.mark.parametrize(
    ("share", "share_class", "expected"),
    [
        ("40%,16gb", None, GpuShareRequest(percent=40, memory_bytes=16 * GIB)),
        ("40%", "high", GpuShareRequest(percent=40, share_class=ShareClass.HIGH)),
        ("40", "low", GpuShareRequest(percent=40)),
        (" 7% , 512mb ", None, GpuShareRequest(percent=7, memory_bytes=GIB // 2)),
        ("100%:16gb:high", None,
         GpuShareRequest(percent=100, memory_bytes=16 * GIB, share_class=ShareClass.HIGH)),
        ("1%,high", "low", GpuShareRequest(percent=1)),
    ],
)  # fmt: skip
def test_the_options_become_a_resource(
    share: str, share_class: str | None, expected: GpuShareRequest
) -> None:
    options = StatedOptions(gpu_share=share, share_class=share_class, cpus=2)

    request = read(*options.resource_texts)

    assert request.gpu_share == expected
    assert (request.cpus, request.gpus, request.places) == (2, 0, 1)


@pytest.mark.parametrize(
    ("line", "script", "expected"),
    [
        ({"share_class": "high"}, {"gpu_share": "40%"}, "40%:high"),
        ({"gpu_share": "50%"}, {"gpu_share": "40%,1gb", "share_class": "high"}, "50%:high"),
        ({"resources": ("gpu_share=60%",)}, {"gpu_share": "40%", "share_class": "high"}, "60%:low"),
        ({"gpu_share": "60%"}, {"resources": ("gpu_share=40%:high",)}, "60%:low"),
        ({"walltime": "1h"}, {"resources": ("gpu_share=40%:high",)}, "40%:high"),
    ],
)
def test_the_command_line_beats_the_script(
    line: dict[str, object], script: dict[str, object], expected: str
) -> None:
    both = merged(StatedOptions(line), StatedOptions(script))
    share = read(*both.resource_texts).gpu_share

    assert share is not None
    assert format_gpu_share(share) == expected


@pytest.mark.parametrize(
    ("stated", "message", "hint"),
    [
        ({"share_class": "high"}, "--share-class high without --gpu-share", "--gpu-share 40%"),
        (
            {"share_class": "high", "resources": ("gpu_share=40%",)},
            "without",
            "-l gpu_share=40%:high",
        ),
        (
            {"share_class": "low", "resources": ("mem=1gb,gpu_share=40%:2gb:high",)},
            "without",
            "-l gpu_share=40%:2gb:low",
        ),
        ({"gpu_share": "101%"}, "--gpu-share 101%: a GPU has 100 %", "gpus=N"),
        ({"gpu_share": "0%"}, "--gpu-share 0%: must be at least 1 %", "--gpu-share PERCENT%"),
        ({"gpu_share": "-3%"}, "not a percentage", "as in --gpu-share 40%,16gb"),
        ({"gpu_share": "16gb"}, "not a percentage", "as in --gpu-share 40%,16gb"),
        ({"gpu_share": "40%,much"}, "'40%,much': 'much' is neither a size nor a class", "40%,16gb"),
        ({"gpu_share": "40%,1gb,2gb"}, "neither a size nor a class", "40%,16gb"),
        ({"gpu_share": "40%,0"}, "too little for any program", "write"),
        ({"gpu_share": "40%,16"}, "too little for any program", "16gb"),
        ({"gpu_share": "40%,9999999pb"}, "exceeds the limit", ""),
        ({"gpu_share": "4\u0660%"}, "not a percentage", "40%,16gb"),
        ({"gpu_share": ""}, "not a percentage", "40%,16gb"),
    ],
)
def test_bad_shares_are_refused_with_what_to_do(
    stated: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(GschedError) as refused:
        _ = StatedOptions(stated).resource_texts

    assert message in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus=2,gpu_share=10%", "a part of one GPU, not of 2"),
        ("nodes=2,gpu_share=10%", "for one chunk"),
        ("procs=2,gpu_share=10%", "for one chunk"),
        ("select=1:ngpus=1+1,gpu_share=10%", "for one chunk"),
        ("gpu_share=10%,place=excl", "its node for itself"),
        ("gpu_share=", "has no value"),
    ],
)
def test_a_share_is_of_one_gpu_for_one_chunk(text: str, message: str) -> None:
    with pytest.raises(BadResourceError, match=message):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "gpu_share=40%:16gb:high",
        "gpus=1,gpu_share=40%",
        "nodes=1:ppn=4:gpus=1:bigmem,gpu_share=40%,mem=2gb",
        "select=1:ncpus=2:ngpus=1:mem=1gb,gpu_share=7%:1gb",
        "ncpus=3,gpu_share=1%,place=pack",
    ],
)
def test_what_is_written_back_reads_the_same(text: str) -> None:
    request = read(text)

    assert request.gpus == 0
    assert read(format_resources(request, None)) == request


@given(st.integers(1, 100), st.integers(0, 2**50), st.sampled_from(ShareClass))
def test_every_share_reads_back(percent: int, size_bytes: int, share_class: ShareClass) -> None:
    size_bytes = size_bytes if size_bytes >= 2**20 else 0
    asked = GpuShareRequest(percent=percent, memory_bytes=size_bytes, share_class=share_class)

    assert parse_gpu_share(format_gpu_share(asked)) == asked


@pytest.mark.parametrize("word", ["16gb", "high"])
def test_a_comma_within_a_share_is_told(word: str) -> None:
    with pytest.raises(BadResourceError, match=f"unknown resource '{word}'") as refused:
        read(f"gpu_share=40%,{word}")

    assert refused.value.hint == f"within a resource write colons: gpu_share=40%:{word}"
