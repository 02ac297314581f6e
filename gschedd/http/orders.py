"""The message to a node that carries out an effect; launches, which need the store, are apart."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from gsched.protocol import node as n
from gsched.protocol.job_steps import LoginAnswer, StepOrder, StepRefused
from gschedd.core.state import effects as e


def order(effect: e.AnyEffect) -> n.HeadMessage:
    """Return the message of an effect other than `SendLaunch` and `SendPrepare`."""
    return _MESSAGES[type(effect)](effect)


def _stop(effect: e.SendStop) -> n.Stop:
    return n.Stop(
        job=effect.job,
        attempt=effect.attempt,
        reason=effect.reason,
        grace_s=effect.grace_s,
        token=effect.token,
    )


def _signal(effect: e.SendSignal) -> n.Signal:
    return n.Signal(job=effect.job, attempt=effect.attempt, signal=effect.signal)


def _retime(effect: e.SendRetime) -> n.Retime:
    return n.Retime(job=effect.job, attempt=effect.attempt, walltime_s=effect.walltime_s)


def _ack(effect: e.SendExitAck) -> n.ExitAck:
    return n.ExitAck(job=effect.job, attempt=effect.attempt, token=effect.token)


def _checkpoint(effect: e.SendCheckpoint) -> n.Checkpoint:
    return n.Checkpoint(
        job=effect.job,
        attempt=effect.attempt,
        request=effect.request,
        signal=effect.signal,
        world_size=effect.world_size,
    )


def _go_on(effect: e.SendGoOn) -> n.GoOn:
    return n.GoOn(job=effect.job, attempt=effect.attempt, request=effect.request)


def _tune(effect: e.SendTune) -> n.Tune:
    return n.Tune(job=effect.job, attempt=effect.attempt, batching=effect.batching)


def _step_order(effect: e.SendStepOrder) -> StepOrder:
    return StepOrder(
        job=effect.job,
        attempt=effect.attempt,
        node=effect.origin,
        step=effect.step,
        address=effect.address,
        port=effect.port,
        secret=effect.secret,
    )


def _step_refused(effect: e.SendStepRefused) -> StepRefused:
    return StepRefused(
        job=effect.job,
        attempt=effect.attempt,
        node=effect.agent,
        step=effect.step,
        message=effect.message,
    )


def _login_answer(effect: e.SendLoginAnswer) -> LoginAnswer:
    return LoginAnswer(login=effect.login, job=effect.job, attempt=effect.attempt)


def _probe(effect: e.SendProbe) -> n.Probe:
    return n.Probe(request=effect.request)


_MESSAGES: Final[Mapping[type[e.AnyEffect], Callable[[Any], n.HeadMessage]]] = MappingProxyType(
    {
        e.SendStop: _stop,
        e.SendSignal: _signal,
        e.SendRetime: _retime,
        e.SendExitAck: _ack,
        e.SendCheckpoint: _checkpoint,
        e.SendGoOn: _go_on,
        e.SendTune: _tune,
        e.SendStepOrder: _step_order,
        e.SendStepRefused: _step_refused,
        e.SendLoginAnswer: _login_answer,
        e.SendProbe: _probe,
    }
)
