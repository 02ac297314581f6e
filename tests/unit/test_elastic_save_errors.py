"""What a failed save says: the disk's own word, not that of torch's archive."""

from gsched.elastic.tensors import root_error, words

FULL = OSError(28, "No space left on device")


def chained(message: str) -> RuntimeError:
    """Return an error raised while another was handled."""
    try:
        try:
            raise FULL
        except OSError:
            raise RuntimeError(message)  # noqa: B904 - as torch does it
    except RuntimeError as error:
        return error


def test_full_disk_is_told_and_not_the_length_of_the_archive() -> None:
    error = chained("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    assert root_error(error) is FULL
    assert words(error) == "[Errno 28] No space left on device"


def test_error_of_anything_else_is_told_as_it_is() -> None:
    assert words(chained("my object has no state")) == "RuntimeError: my object has no state"
    alone = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1 vs 2")
    assert root_error(alone) is alone
