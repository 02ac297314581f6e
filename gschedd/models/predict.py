"""What predicts the resource usage of jobs, and learns from each job that ends."""

from collections.abc import Collection
from typing import Protocol

from gschedd.models.records import Record
from gschedd.plan.load import Kind, Predictor


class Model(Predictor, Protocol):
    """A predictor that learns from every run that ends."""

    def learn(self, record: Record) -> None:
        """Take a run into account; runs come in the order in which they ended."""

    def detach(self, kinds: Collection[Kind], before: Predictor | None = None) -> Predictor:
        """Return the same as `gschedd.plan.load.Learning.detach`."""
