"""One property for many policies: each example is drawn once and given to all of them."""

import inspect
from collections.abc import Callable, Mapping

from hypothesis import note, settings

from gschedd.plan.snapshot import Policy

#: Examples for each of the profile's: one that all policies share costs little more than to draw.
MORE_EXAMPLES = 2

Check = Callable[..., None]


def with_each(policies: Mapping[str, Policy]) -> Callable[[Check], Check]:
    """Return what gives each policy to a check; the last note of a failure names its policy."""

    def decorate(check: Check) -> Check:
        def checked(*drawn: object, **named: object) -> None:
            for name, policy in policies.items():
                note(f"policy: {name}")
                check(policy, *drawn, **named)

        signature = inspect.signature(check)
        drawn = [each for each in signature.parameters.values() if each.name != "policy"]
        checked.__signature__ = signature.replace(parameters=drawn)  # type: ignore[attr-defined]  # read by inspect
        checked.__name__, checked.__qualname__ = check.__name__, check.__qualname__
        checked.__module__, checked.__doc__ = check.__module__, check.__doc__
        assert settings.default is not None
        return settings(max_examples=MORE_EXAMPLES * settings.default.max_examples)(checked)

    return decorate
