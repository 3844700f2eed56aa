"""Running somebody's kernel: what it gave back, and what it did besides."""

from scancheck.runner.execute import execute
from scancheck.runner.outcome import Outcome, Problem
from scancheck.runner.signature import accepted_parameters, required_parameters

__all__ = [
    "Outcome",
    "Problem",
    "accepted_parameters",
    "execute",
    "required_parameters",
]
