"""Whether this node can start an attempt, and why it cannot. Pure."""

import errno
from typing import Final, NamedTuple

from gnode.core.contained import container_of
from gnode.core.containers import runtime_for
from gnode.core.inputs import LaunchOrder
from gnode.core.table import Table
from gnode.core.task import AttemptKey
from gsched.model.job import ExitRecord, LaunchFailure
from gsched.model.resources import crowded_gpu
from gsched.model.states import LaunchStage, OutcomeKind, StopReason, Subject

#: The order does not fit what this node is or does now: nobody's fault.
UNFIT: Final = LaunchFailure(stage=LaunchStage.ORDER, subject=Subject.NODE)


class LaunchRefusal(NamedTuple):
    """Why this node cannot start an attempt: in words, and as evidence for the head."""

    message: str
    failure: LaunchFailure = UNFIT
    reason: StopReason | None = None

    def record(self, key: AttemptKey, wall_s: float) -> ExitRecord:
        """Return the exit record of an attempt that is refused."""
        return ExitRecord(
            job=key.job,
            attempt=key.attempt,
            kind=OutcomeKind.LAUNCH_FAILED,
            stop_reason=self.reason,
            failure=self.failure,
            message=self.message,
            ended_s=wall_s,
        )


def other_history(key: AttemptKey) -> LaunchRefusal:
    """Return the refusal of an attempt whose number another one has here."""
    return LaunchRefusal(
        f"attempt {key.name} is known on this node from a history that the head does not know: "
        "its database is, or was, an old copy"
    )


def refusal_of(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    """Return why this node cannot start the attempt, or None."""
    return next(filter(None, (check(table, order) for check in _CHECKS)), None)


def _order_refusal(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    launch, node = order.launch, table.site.node
    known = table.attempts.get(AttemptKey(launch.job, launch.attempt))
    if known is not None and not known.is_of(launch.token):
        return other_history(known.key)
    if launch.share.node != node:
        return LaunchRefusal(f"the launch is for node {launch.share.node}, but this is {node}")
    return None


def _account_refusal(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    site, owner, account = table.site, order.launch.spec.owner, order.account
    if account is None and order.lookup_failed:
        number = errno.ETIMEDOUT
        message = f"the name service on {site.node} does not answer for user {owner.user}"
    elif account is None:
        number = errno.ENOENT
        message = f"node {site.node} knows no user {owner.user}: add the user there"
    elif account.uid != owner.uid:
        number = errno.EINVAL
        message = (
            f"user {owner.user} has uid {owner.uid} on the head, but {account.uid} on "
            f"{site.node}: make them equal"
        )
    elif site.uid not in {0, account.uid}:
        number = errno.EPERM
        message = (
            f"gnode on {site.node} runs as uid {site.uid} without root, "
            f"so it cannot start jobs of {owner.user} (uid {owner.uid})"
        )
    elif account.uid == 0 and not site.root_jobs:
        number = errno.EPERM
        message = (
            f"node {site.node} starts no jobs of root: "
            "submit as another user, or set allow_root_jobs in its configuration"
        )
    else:
        return None
    failure = LaunchFailure(stage=LaunchStage.ACCOUNT, subject=Subject.USER, errno=number)
    return LaunchRefusal(message, failure)


def _container_refusal(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    container = container_of(order.launch)
    if container is None or runtime_for(container, table.site.containers) is not None:
        return None
    what = container.needs or "container runtime"
    return LaunchRefusal(f"node {table.site.node} has no {what}: install it, or see gnodes")


def _gpu_refusal(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    launch = order.launch
    present = {gpu.index for gpu in table.inventory.gpus}
    for held in launch.share.gpus_held:
        if held.index not in present:
            return LaunchRefusal(
                f"node {table.site.node} has no GPU {held.index}",
                LaunchFailure(stage=LaunchStage.DEVICE, subject=Subject.NODE, errno=errno.ENODEV),
            )
        owner = None if order.prepare else table.gpu_owner.get(held.index)
        if owner is not None and owner.job != launch.job:
            return LaunchRefusal(
                f"GPU {held.index} of node {table.site.node} still belongs to attempt {owner.name}",
            )
    return None


def _share_refusal(table: Table, order: LaunchOrder) -> LaunchRefusal | None:
    """Return why the GPUs conflict with shares in use on the node; None: no conflict."""
    launch, node = order.launch, table.site.node
    if order.prepare:
        return None
    if launch.share.gpu_shares and not table.site.sharing:
        return LaunchRefusal(
            f"node {node} does not let jobs share its GPUs: set runtime in [gpu_share] there; "
            "if it is set, its log says what keeps it from that",
        )
    others = {
        key: attempt.gpu_shares for key, attempt in table.sharers.items() if key.job != launch.job
    }
    if not others and not launch.share.gpu_shares:
        return None
    held = [share for shares in others.values() for share in shares]
    index = crowded_gpu([*held, *launch.share.gpus_held], table.inventory.gpus)
    if index is None:
        return None
    names = [key.name for key in others if any(each.index == index for each in others[key])]
    shared = f"is shared by {', '.join(names)}, and " if names else ""
    return LaunchRefusal(f"GPU {index} of node {node} {shared}has no room for this job")


def _ending_refusal(table: Table, _order: LaunchOrder) -> LaunchRefusal | None:
    if table.ending is None:
        return None
    if table.ending is StopReason.SHUTDOWN:
        return LaunchRefusal("the node's machine shuts down")
    return LaunchRefusal("the node daemon is ending its jobs", reason=table.ending)


#: The first refusal counts.
_CHECKS: Final = (
    _order_refusal,
    _account_refusal,
    _container_refusal,
    _gpu_refusal,
    _share_refusal,
    _ending_refusal,
)
