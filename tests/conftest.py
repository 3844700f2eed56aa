"""Hypothesis profiles by name, and a guard for mpmath's global precision."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# The gate gives the same examples on every run; `--hypothesis-profile scancheck-dev`
# looks for new ones. A profile is always loaded by name: Hypothesis would otherwise
# choose one of its own where the variable CI is set.
settings.register_profile(
    "scancheck-gate", deadline=None, derandomize=True, print_blob=True, max_examples=50
)
settings.register_profile(
    "scancheck-dev", deadline=None, print_blob=True, max_examples=100
)
settings.load_profile("scancheck-gate")


@pytest.fixture(autouse=True)
def _mpmath_precision_unchanged() -> Iterator[None]:
    """Fails a test that leaves mpmath's global precision changed, and restores it."""
    before = _mpmath_precision()
    yield
    after = _mpmath_precision()
    if before is not None and after != before:
        sys.modules["mpmath"].mp.prec = before
        pytest.fail(f"mpmath's global precision went from {before} to {after} bits")


def _mpmath_precision() -> int | None:
    """Bits of mpmath's global context; None where mpmath is not loaded."""
    mpmath = sys.modules.get("mpmath")
    return None if mpmath is None else int(mpmath.mp.prec)


@pytest.fixture(scope="session")
def host_card(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """CUDA sources of oracles and bounds compiled for this processor."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile CUDA sources for the CPU with")
    sys.path.insert(0, str(Path(__file__).parent))
    from cards.host import Host

    return Host(tmp_path_factory.mktemp("cuda_on_host"))


@pytest.fixture(params=["host", pytest.param("device", marks=pytest.mark.gpu)])
def card(request: pytest.FixtureRequest) -> Iterator[str]:
    """Those sources run by this processor, and on a device where there is one."""
    # Imported here: tests that use no card need none of it.
    from scancheck.kernels.cuda.toolkit import unavailable
    from scancheck.oracles import cuda_card

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "host":
            host = request.getfixturevalue("host_card")
            for name in ("arrays", "device_index", "launch"):
                patch.setattr(cuda_card, name, getattr(host, name))
        elif reason := unavailable():
            pytest.skip(reason)
        yield str(request.param)


@pytest.fixture(scope="session")
def causes_until() -> Any:
    """Judges a planted bug until it is named; gives the causes of its red cases."""
    from scancheck.checks.experiments import likely_cause
    from scancheck.contract import Contract
    from scancheck.gate.findings import findings_of
    from scancheck.gate.loop import Judging

    class Named(Exception):
        """The bug has been named; no further case is needed."""

    def causes(kernel: Any, dtype: str) -> list[str]:
        run = Judging(
            kernel=kernel,
            contract=kernel.contract or Contract(),
            declared=kernel.contract is not None,
            profile="quick",
            gradients=True,
            require=frozenset(),
            seed=0,
            dtypes=(dtype,),
        )
        found: list[str] = []

        def look(done: int, total: int, report: Any) -> None:
            red = [item for item in run.tally.red if item.report is report]
            found.extend(likely_cause(i.kernel, i.report, i.check)[0] for i in red)
            if red and kernel.symptom not in found:  # a wider contract may say more
                found.extend(finding.cause for finding in findings_of(run.op, red, ""))
            if kernel.symptom in found:
                raise Named

        with suppress(Named):
            run.judge(None, look)
        return found

    return causes
