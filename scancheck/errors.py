"""What can go wrong outside a judged kernel, each kind with its own class.

A message names the argument, what was expected and what came, and what to try.
"""


class ScancheckError(Exception):
    """Base of every error that scancheck raises on purpose."""


class CaseInvalid(ScancheckError):
    """The request itself is wrong: op, size, dtype, recipe, contract or target."""


class KernelUnavailable(ScancheckError):
    """The kernel exists, but cannot run here (package, version or device missing)."""


class DeviceLost(ScancheckError):
    """An earlier fault has left a device unusable for this process."""


class KernelFailed(ScancheckError):
    """A kernel raised, hung or returned something of the wrong shape or dtype."""


class OracleUncertain(ScancheckError):
    """No rung of the oracle ladder could certify the reference closely enough."""


class RecordUnreadable(ScancheckError):
    """A stored finding, row file or report cannot be read or has another schema."""
