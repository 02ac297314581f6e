"""What gsim says where a library is missing."""

import pytest

from gsched.errors import UsageError
from gschedd.sim.output import require


def test_a_missing_library_is_installed_from_the_checkout() -> None:
    """gsched is not in a public index: whoever took the name there would be installed instead."""
    with pytest.raises(UsageError) as refused:
        require("gsched_no_such_module", option="--figures", extra="'.[figures]'")

    assert refused.value.message.startswith("--figures needs gsched_no_such_module")
    assert refused.value.hint.endswith("pip install '.[figures]'")
