"""What the head's effects send."""

from gsched.protocol import node as n
from gschedd.core.state import effects as e
from gschedd.core.state.step import Step

Order = n.HeadMessage | e.SendLaunch | e.SendPrepare | e.SwitchPower


def order_of(effect: e.AnyEffect) -> Order:
    """Return the message of an effect; a launch and a preparation are made when they leave."""
    return effect.message if isinstance(effect, e.Send) else effect


def orders(step: Step) -> list[Order]:
    """Return what a step sends to nodes."""
    return [order_of(effect) for effect in step.effects]
