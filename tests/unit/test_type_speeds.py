"""How fast GPU types are against each other, from kinds that ran on several of them."""

import pytest

from gschedd.models.type_speeds import MAX_KINDS, MAX_SIZES, TypeSpeeds


def learned(**kinds: tuple[float, float]) -> TypeSpeeds:
    """Return what kinds teach that take so many seconds a sample on types a and b."""
    speeds = TypeSpeeds()
    for kind, (a_s, b_s) in kinds.items():
        for samples in (8, 16, 32):
            speeds.learn(kind, "a", samples, a_s * samples)
            speeds.learn(kind, "b", samples, b_s * samples)
    return speeds


def test_one_kind_tells_the_ratio_of_two_types() -> None:
    speeds = learned(net=(0.1, 0.3))

    assert speeds.ratio("a", "b") == pytest.approx(3.0)
    assert speeds.ratio("b", "a") == pytest.approx(1 / 3)
    assert speeds.types == {"a", "b"}


def test_types_that_no_kind_has_tried_both_have_no_ratio() -> None:
    speeds = learned(net=(0.1, 0.3))
    speeds.learn("other", "c", 8, 1.0)

    assert speeds.ratio("c", "a") is None
    assert speeds.ratio("d", "a") is None


def test_of_several_kinds_the_upper_quartile_counts() -> None:
    """Ratios 1, 2, 4, 8 and 16: the fourth of them."""
    kinds = {f"k{number}": (1.0, 2.0**number) for number in range(5)}

    assert learned(**kinds).ratio("a", "b") == pytest.approx(8.0)


def test_sizes_need_not_be_the_same() -> None:
    """Between two sizes the time is a line; outside of those of a type nothing is compared."""
    speeds = TypeSpeeds()
    for samples in (10, 30):
        speeds.learn("net", "a", samples, 1.0 + samples)
    speeds.learn("net", "b", 5, 1e6)
    for samples in (9, 20, 31):
        speeds.learn("net", "b", samples, 2.0 + 2.0 * samples)

    assert speeds.ratio("a", "b") == pytest.approx(2.0)
    assert speeds.ratio("b", "a") == pytest.approx(0.5)


def test_sizes_that_do_not_overlap_say_nothing() -> None:
    speeds = TypeSpeeds()
    speeds.learn("net", "a", 8, 1.0)
    speeds.learn("net", "b", 16, 1.0)

    assert speeds.ratio("a", "b") is None


def test_a_later_time_replaces_an_earlier_one() -> None:
    speeds = learned(net=(0.1, 0.3))
    assert speeds.ratio("a", "b") == pytest.approx(3.0)
    for samples in (8, 16, 32):
        speeds.learn("net", "a", samples, 0.6 * samples)

    assert speeds.ratio("a", "b") == pytest.approx(0.5)


def test_profiles_are_compared_with_profiles() -> None:
    """Steps of a training take longer than its profile, and not on one type only."""
    speeds = TypeSpeeds()
    speeds.learn("net", "a", 8, 9.0)
    speeds.learn("net", "a", 8, 1.0, profiled=True)
    speeds.learn("net", "a", 8, 5.0)
    speeds.learn("net", "b", 8, 2.0, profiled=True)

    assert speeds.ratio("a", "b") == pytest.approx(2.0)


def test_it_is_bounded() -> None:
    speeds = TypeSpeeds()
    for number in range(MAX_KINDS + 10):
        speeds.learn(f"k{number}", "a", 8, 1.0)
    for samples in range(1, MAX_SIZES + 10):
        speeds.learn("last", "b", samples, 1.0)

    assert len(speeds._kinds) == MAX_KINDS
    last = speeds._kinds.get("last")
    assert last is not None
    assert len(last.steps_s["b"]) == MAX_SIZES
