"""Messages of the node channel about job steps over several nodes: who wants step agents.

The tasks' input and output take another way: see `gsched.protocol.steps`.
"""

from msgspec import Struct

from gsched.model.numbers import Count


class StepOrder(Struct, frozen=True, kw_only=True, tag="step_order"):
    """Let the attempt's step agent here connect to a program of the job on another node.

    Answered by `StepFailed` only if it cannot be done.

    Attributes:
        node, step: the program's node, and its number there.
        address, port: where it listens.
        secret: with which both sides prove who they are; 32 hex digits.
    """

    job: Count
    attempt: Count
    node: str
    step: Count
    address: str
    port: Count
    secret: str


class StepRefused(Struct, frozen=True, kw_only=True, tag="step_refused"):
    """The step agent of another node cannot connect to a program here.

    Attributes:
        node: of the agent.
        step: the program's number on this node.
        message: why, in words.
    """

    job: Count
    attempt: Count
    node: str
    step: Count
    message: str


class StepFailed(Struct, frozen=True, kw_only=True, tag="step_failed"):
    """A step agent of this node cannot connect to the program that requested it.

    Attributes:
        node: of the agent.
        origin, step: the program's node, and its number there.
        message: why, in words.
    """

    job: Count
    attempt: Count
    node: str
    origin: str
    step: Count
    message: str


class StepRequest(Struct, frozen=True, kw_only=True, tag="step_request"):
    """A program of an attempt wants the step agents of these nodes to connect to it.

    The head starts the agents that do not run yet, and sends each a `StepOrder`. Answered by
    `StepRefused` for each node where that is not possible.

    Attributes:
        step: the program's number on this node.
        nodes: of the attempt's allocation.
        port: where it listens, on this node's address.
        secret: with which both sides prove who they are; 32 hex digits.
    """

    job: Count
    attempt: Count
    step: Count
    nodes: tuple[str, ...]
    port: Count
    secret: str


class LoginRequest(Struct, frozen=True, kw_only=True, tag="login_request"):
    """A user logs in to this node, on which no process of the user's jobs runs.

    A job of the user that has only reserved this node gets its step agent here.
    Answered by `LoginAnswer`.

    Attributes:
        login: the number of the request on this node.
        uid: of the user.
        address: where the login comes from; empty: that is not known.
    """

    login: Count
    uid: Count
    address: str = ""


class LoginAnswer(Struct, frozen=True, kw_only=True, tag="login_answer"):
    """The attempt whose step agent starts for a login; ``job`` 0: the user has no job here."""

    login: Count
    job: Count = 0
    attempt: Count = 0


#: What the head says of job steps, and a node.
StepMessage = StepOrder | StepRefused | LoginAnswer
StepReport = StepRequest | StepFailed | LoginRequest
