"""The verify loop: every case of a profile through the funnel, then one verdict."""

from scancheck.gate.verify import Result, verify

__all__ = ["Result", "verify"]
