"""Which supervisors the launcher is asked to confine: nothing that they start may gain rights."""

from typing import Any

import pytest

from gnode.core import effects as do
from gnode.core.site import NodeLimits, ProgramRules
from tests.support.agent_driver import Driver, only, order


@pytest.mark.parametrize(
    ("settings", "confined"),
    [
        ({}, False),
        ({"limits": NodeLimits(no_new_privileges=True)}, True),
        (
            {
                "limits": NodeLimits(no_new_privileges=True),
                "programs": ProgramRules(prolog="/etc/prolog"),
            },
            False,
        ),
    ],
    ids=["may gain rights", "nothing may", "but a prolog"],
)
def test_a_supervisor_is_confined_if_nothing_that_it_starts_may_gain_rights(
    settings: dict[str, Any], *, confined: bool
) -> None:
    effects = Driver(**settings).launch(order())

    assert [effect.confined for effect in only(effects, do.AskLaunch)] == [confined]
