"""One configuration of each autotuned Triton kernel, the same in every call.

Autotuning takes 30 to 50 s for each op, dtype and class of shapes, and picks by time:
another run may be another kernel. What is judged here is the first configuration that
fits the device, in the order in which the kernel's authors list them; rounding hardly
depends on it, but what has been judged can be named, and judged again.
"""

from functools import cache, wraps
from typing import Any

FIRST = "the first of its configurations that fits, not the fastest one"


@cache
def take_first() -> None:
    """From here on autotuned Triton kernels of this process run without being timed."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources

    timed = Autotuner.run

    @wraps(timed)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        configurations = self.configs
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        # What a kernel itself rules out for these sizes stays out.
        *others, last = self.prune_configs(kwargs)
        try:
            for one in others:
                # A single one is launched as it is.
                self.configs = [one]
                try:
                    return timed(self, *args, **kwargs)
                except OutOfResources:
                    continue
            self.configs = [last]
            return timed(self, *args, **kwargs)
        finally:
            self.configs = configurations

    Autotuner.run = run
