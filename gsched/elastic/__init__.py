"""What a training script imports to be checkpointed, moved and resized by gsched.

    from gsched import elastic

    elastic.ready()  # after imports; before the process group, a GPU, data
    samples = elastic.Samples(len(data), global_batch=64, epochs=20)
    training = elastic.start(model, optimizer, samples)
    for epoch in training.epochs():
        for images, classes in training.loader(data):
            ...  # forward, backward, optimizer.step()
            training.step()
    training.finish()

The same script runs outside gsched, where it just trains. Standard library and torch only, and
torch only when `start` is called.
"""

from gsched.elastic.adaptive.noise import Noise
from gsched.elastic.adaptive.options import Adaptive, Alone, Rule, Until
from gsched.elastic.adaptive.training import AdaptiveTraining
from gsched.elastic.errors import (
    BadArgumentError,
    BadEnvironmentError,
    CheckpointMismatchError,
    CheckpointUnusableError,
    ElasticError,
    StepError,
    WorldSizeError,
)
from gsched.elastic.gate import ready
from gsched.elastic.samples import Samples
from gsched.elastic.starting import start
from gsched.elastic.training import Settings, Training

__all__ = [
    "Adaptive",
    "AdaptiveTraining",
    "Alone",
    "BadArgumentError",
    "BadEnvironmentError",
    "CheckpointMismatchError",
    "CheckpointUnusableError",
    "ElasticError",
    "Noise",
    "Rule",
    "Samples",
    "Settings",
    "StepError",
    "Training",
    "Until",
    "WorldSizeError",
    "ready",
    "start",
]
