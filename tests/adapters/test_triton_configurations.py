"""Autotuned kernels run in the first configuration that fits."""

from types import SimpleNamespace
from typing import Any

import pytest

from scancheck.adapters.triton_configurations import take_first

autotuner = pytest.importorskip("triton.runtime.autotuner", reason="triton is missing")
errors = pytest.importorskip("triton.runtime.errors")


@pytest.mark.parametrize(
    ("fits", "launched"), [({"a", "b", "c"}, "a"), ({"b", "c"}, "b"), ({"c"}, "c")]
)
def test_the_first_that_fits_is_launched(
    fits: set[str], launched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, what the kernel rules out left out; all of them stay listed."""

    def run(self: Any, *args: Any, **kwargs: Any) -> str:
        (one,) = self.configs
        if one not in fits:
            raise errors.OutOfResources(1, 0, "shared memory")
        return str(one)

    monkeypatch.setattr(autotuner.Autotuner, "run", run)
    take_first.__wrapped__()
    listed = ["a", "b", "c", "ruled out"]
    kernel = SimpleNamespace(
        configs=listed, arg_names=["x"], prune_configs=lambda kwargs: listed[:3]
    )
    assert autotuner.Autotuner.run(kernel, 1) == launched
    assert kernel.configs is listed
    assert kernel.nargs == {"x": 1}


def test_none_that_fits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's own error."""

    def run(self: Any, *args: Any, **kwargs: Any) -> str:
        raise errors.OutOfResources(1, 0, "shared memory")

    monkeypatch.setattr(autotuner.Autotuner, "run", run)
    take_first.__wrapped__()
    kernel = SimpleNamespace(configs=[1, 2], arg_names=[], prune_configs=lambda _: [1])
    with pytest.raises(errors.OutOfResources):
        autotuner.Autotuner.run(kernel)
    assert kernel.configs == [1, 2]
