"""Names of signals."""

import signal

import pytest

from gsched.model.signals import SIGNAL_NAMES, describe_signal


@pytest.mark.parametrize("number", SIGNAL_NAMES)
def test_the_names_are_those_of_this_kernel(number: int) -> None:
    if number not in set(signal.Signals):
        pytest.skip(f"this Python knows no signal {number}")

    assert signal.Signals(number).name == f"SIG{SIGNAL_NAMES[number]}"


def test_a_signal_without_a_name_is_its_number() -> None:
    assert (describe_signal(9), describe_signal(40)) == ("9 (KILL)", "40")
