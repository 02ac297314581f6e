"""What can be wrong with a training script or its checkpoints, in words."""

#: sysexits' EX_CONFIG: starting the same training again would meet the same.
EXIT_CODE = 78


class ElasticError(SystemExit):
    """The training cannot start as it is.

    One that nobody catches ends the process with code 78 and without a traceback: `start` has
    written the words to the standard error of rank 0, once and not once for each rank.
    """

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_CODE)
        self.message = message

    def __str__(self) -> str:
        return self.message


class WorldSizeError(ElasticError):
    """The training cannot run on this number of ranks."""


class CheckpointMismatchError(ElasticError):
    """The checkpoint is one of another training: other data, another seed."""


class CheckpointUnusableError(ElasticError):
    """There are checkpoints, and none of them can be loaded."""


class BadArgumentError(ElasticError):
    """`start` was given something that cannot be saved."""


class BadEnvironmentError(ElasticError):
    """A GSCHED_ variable that makes no sense."""


class StepError(RuntimeError):
    """`Training.step` was called too often or not often enough: a mistake in the script."""


class SaveError(Exception):
    """A checkpoint could not be saved; the training goes on untouched."""


class BadCheckpointError(Exception):
    """One checkpoint is torn, altered or of an unknown format."""
