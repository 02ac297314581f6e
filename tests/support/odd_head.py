"""A gschedd that plans training jobs by an odd policy.

``python -m tests.support.odd_head --config FILE`` runs with what ``$ODD_POLICY`` names: ``slow 2``
for a policy that takes two seconds.
"""

import logging
import os
import sys
from functools import partial

from msgspec import structs

from baselines import edf
from gsched.config.load import read_config
from gschedd.daemon import garbage
from gschedd.daemon.service import Service
from gschedd.plan.compose import Composed
from gschedd.plan.snapshot import Policy
from gschedd.policies.registry import chosen_policy
from tests.support.odd_policies import dies, hangs, raises, slow, waits


def named(text: str) -> Policy:
    """Return the policy that a text names.

    ``slow SECONDS``, ``waits PATH``, ``raises``, ``hangs``, ``dies``, ``edf``.
    """
    name, _, argument = text.partition(" ")
    if name == "slow":
        return partial(slow, seconds=float(argument))
    if name == "waits":
        return partial(waits, path=argument)
    return {"raises": raises, "hangs": hangs, "dies": dies, "edf": edf.plan}[name]


def main() -> int:
    """Run the head."""
    logging.basicConfig(level="INFO")
    file = read_config(sys.argv[sys.argv.index("--config") + 1])
    chosen = chosen_policy(file.config)
    assert isinstance(chosen.plan, Composed)
    policy = Composed(named(os.environ["ODD_POLICY"]), chosen.plan.queue_policy)
    service = Service(file, chosen=structs.replace(chosen, name="odd", plan=policy))
    return garbage.run(service.run())


if __name__ == "__main__":
    sys.exit(main())
