"""Times and sizes as PBS users write them, and back."""

import math
import re

from gsched.errors import BadResourceError
from gsched.model.limits import shown
from gsched.model.patterns import pattern

_SIZE = pattern(r"(?P<number>[0-9]{1,19}(?:\.[0-9]{1,9})?)(?P<prefix>[kmgtp]?)(?P<unit>i?[bw]?)")
_BANDWIDTH = pattern(
    r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,9})?) ?"
    r"(?P<prefix>[kKMGTP]?)(?P<binary>i?)(?P<unit>B|b|bit)/s"
)
_COUNT = pattern(r"(?P<number>[0-9]{1,19}(?:\.[0-9]{1,9})?(?:e\+?[0-9]{1,2})?)(?P<prefix>[kmgbt]?)")
_THOUSANDS = {"": 0, "k": 1, "m": 2, "g": 3, "b": 3, "t": 4}
_SHORT = pattern(r"(?P<number>[0-9]{1,12}(?:\.[0-9]{1,9})?) ?(?P<unit>ms|us)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
MAX_DURATION_S = 1e10  # 317 years: more is a typing error, and floats still count milliseconds
MAX_SIZE_BYTES = 1024**6  # an exbibyte: more is a typing error, and 64 bits still hold sums of many
MAX_COUNT = 1e18  # of parameters, samples: more is a typing error
MAX_BANDWIDTH_BYTES_S = 1e15  # no link is that fast: a typing error
_TIME_HINT = "write [[DD:]HH:]MM:SS, seconds, or 1h30m"
_COUNT_HINT = "write 50000, 50k, 138M or 1.5B (10^9)"
_INTERVAL_HINT = "write 35ms, 0.035s or 1m30s"
_BANDWIDTH_HINT = "write 10GB/s (bytes) or 100Gbit/s"
WORD_BYTES = 8  # PBS's "w" suffix counts machine words


def parse_duration_s(text: str, *, zero: bool = False) -> float:
    """Return the seconds of ``[[DD:]HH:]MM:SS[.ms]``, ``90``, ``1h30m`` or ``2d``.

    Args:
        text: the time.
        zero: whether zero is a time, as where it turns something off.

    Raises:
        BadResourceError: the text is not a time, is negative, or zero without ``zero``.
    """
    seconds = _colon_duration(text) if ":" in text or _is_number(text) else _unit_duration(text)
    if seconds is None:
        raise BadResourceError(f"invalid time {shown(text)}", hint=_TIME_HINT)
    if seconds > MAX_DURATION_S:
        raise BadResourceError(
            f"time {text[:20]!r} exceeds the limit of {MAX_DURATION_S:.0f} seconds",
            hint="omit the walltime for no limit",
        )
    if seconds < 0 or (seconds == 0 and not zero):
        least = "must not be negative" if zero else "must be greater than zero"
        raise BadResourceError(f"time {least}, got {shown(text)}", hint=_TIME_HINT)
    return seconds


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is not None


def _colon_duration(text: str) -> float | None:
    negative = text.startswith("-")
    fields = text.removeprefix("-").split(":")
    if len(fields) > 4 or not all(re.fullmatch(r"[0-9]+", field) for field in fields[:-1]):
        return None
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", fields[-1]):
        return None
    weights = (1, 60, 3600, 86400)
    total = sum(
        float(field) * weight for field, weight in zip(reversed(fields), weights, strict=False)
    )
    return -total if negative else total


def _unit_duration(text: str) -> float | None:
    if not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[dhms])+", text):
        return None
    weights = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)([dhms])", text)
    return sum(float(number) * weights[unit] for number, unit in parts)


def parse_size_bytes(text: str) -> int:
    """Return the bytes of ``4gb``, ``195312K``, ``512`` or ``2gw`` (words of 8 bytes).

    Prefixes are powers of 1024, as in PBS.

    Raises:
        BadResourceError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None:
        raise BadResourceError(
            f"invalid size {shown(text)}", hint="write 512mb, 4gb, or a number of bytes"
        )
    factor = WORD_BYTES if match["unit"].endswith("w") else 1
    # whole numbers stay exact: as a float, many bytes would come out as some other number
    number = float(match["number"]) if "." in match["number"] else int(match["number"])
    size_bytes = int(number * factor * 1024 ** _POWERS[match["prefix"]])
    if size_bytes > MAX_SIZE_BYTES:
        raise BadResourceError(f"size {text[:20]!r} exceeds the limit of 1024 petabytes")
    return size_bytes


def parse_count(text: str) -> float:
    """Return the number of ``138M``, ``1.5B``, ``50k``, ``5e4`` or ``50_000``; k is 1000.

    Raises:
        BadResourceError: the text is not a number, or not above zero.
    """
    match = _COUNT.fullmatch(text.strip().replace("_", "").lower())
    if match is None:
        raise BadResourceError(f"invalid number {shown(text)}", hint=_COUNT_HINT)
    count = float(match["number"]) * 1000.0 ** _THOUSANDS[match["prefix"]]
    if not 0 < count <= MAX_COUNT:
        raise BadResourceError(
            f"number must be greater than zero and at most {MAX_COUNT:g}, got {shown(text)}",
            hint=_COUNT_HINT,
        )
    return count


def parse_interval_s(text: str, *, zero: bool = False) -> float:
    """Return the seconds of ``35ms``, ``350us``, or of anything `parse_duration_s` reads.

    Args:
        text: the time.
        zero: whether zero is a time.

    Raises:
        BadResourceError: the text is not a time, is negative, or zero without ``zero``.
    """
    match = _SHORT.fullmatch(text.strip())
    if match is None:
        try:
            return parse_duration_s(text.strip(), zero=zero)
        except BadResourceError as error:
            raise BadResourceError(error.message, hint=_INTERVAL_HINT) from None
    interval_s = float(match["number"]) / (1e3 if match["unit"] == "ms" else 1e6)
    if interval_s <= 0 and not zero:
        raise BadResourceError(
            f"time must be greater than zero, got {shown(text)}", hint=_INTERVAL_HINT
        )
    return interval_s


def parse_bandwidth_bytes_s(text: str) -> float:
    """Return the bytes a second of ``10GB/s``, ``100Gbit/s`` or ``25GiB/s``.

    As networks are sold: ``G`` is 10^9, ``Gi`` 2^30, ``B`` a byte, ``bit`` or ``b`` an eighth.

    Raises:
        BadResourceError: the text is not a bandwidth, or not above zero.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    if match is None:
        raise BadResourceError(f"invalid bandwidth {shown(text)}", hint=_BANDWIDTH_HINT)
    power = _POWERS[match["prefix"].lower()]
    unit = 1024.0**power if match["binary"] else 1000.0**power
    bytes_s = float(match["number"]) * unit / (1 if match["unit"] == "B" else 8)
    if not 0 < bytes_s <= MAX_BANDWIDTH_BYTES_S:
        raise BadResourceError(
            f"bandwidth must be greater than zero and at most 1 PB/s, got {shown(text)}",
            hint=_BANDWIDTH_HINT,
        )
    return bytes_s


def format_duration(seconds: float | None) -> str:
    """Return ``HH:MM:SS`` (hours may exceed 24), or ``--`` for None and for what never ends."""
    if seconds is None or not math.isfinite(seconds):
        return "--"
    whole = int(seconds)
    return f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def format_size(size_bytes: int) -> str:
    """Return ``1.5gb``: the size for people, rounded to one digit behind the point."""
    if size_bytes <= 0:
        return "0b"
    for power, unit in ((4, "tb"), (3, "gb"), (2, "mb"), (1, "kb")):
        size = 1024**power
        if size_bytes >= size:
            return f"{size_bytes / size:.1f}".removesuffix(".0") + unit
    return f"{size_bytes}b"


def format_gpu_hours(gpu_s: float) -> str:
    """Return GPU-seconds as ``1.5 GPU-hours``."""
    hours = gpu_s / 3600
    return f"{hours:.1f} GPU-hours" if hours >= 1 else f"{hours:.2f} GPU-hours"


def format_gpus(count: int) -> str:
    """Return ``1 GPU`` or ``2 GPUs``."""
    return f"{count} GPU" + "s" * (count != 1)


def exact_size(size_bytes: int) -> str:
    """Return the size in the largest PBS unit that states it exactly; reading it gives it back."""
    for power, unit in ((4, "tb"), (3, "gb"), (2, "mb"), (1, "kb")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{unit}"
    return f"{size_bytes}b"
