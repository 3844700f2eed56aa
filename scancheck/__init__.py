"""Correctness and precision checks for scan and linear-recurrence kernels.

The public names are imported when first used, so that `import scancheck` loads
neither torch nor any other large library (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scancheck.capturing import capture as capture
    from scancheck.case import Case as Case
    from scancheck.contract import Contract as Contract
    from scancheck.gate import verify as verify
    from scancheck.kernel import Kernel as Kernel
    from scancheck.kernels.models.decode import decode as decode
    from scancheck.ops.custom import custom_op as custom_op

__version__ = "0.1.0"

_MODULE_OF = {
    "Case": "scancheck.case",
    "Contract": "scancheck.contract",
    "Kernel": "scancheck.kernel",
    "capture": "scancheck.capturing",
    "custom_op": "scancheck.ops.custom",
    "decode": "scancheck.kernels.models.decode",
    "verify": "scancheck.gate",
}

__all__ = [
    "Case",
    "Contract",
    "Kernel",
    "__version__",
    "capture",
    "custom_op",
    "decode",
    "verify",
]


def __getattr__(name: str) -> Any:
    """The public object of that name, from the module that defines it."""
    if name not in _MODULE_OF:
        message = f"module 'scancheck' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """The public names, imported or not, and what is loaded already."""
    return sorted({*globals(), *__all__})
