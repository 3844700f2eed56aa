"""Kernels by name, and every way in which a target can be refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scancheck import registry
from scancheck.contract import Contract
from scancheck.errors import CaseInvalid, KernelUnavailable, ScancheckError
from scancheck.kernel import Kernel
from scancheck.ops import OPS
from scancheck.registry import kernels, resolve_target

ROOT = Path(__file__).parents[1]
KERNELS = kernels()


def scan(a: Any, b: Any) -> Any:
    """A user's kernel."""


def test_names_are_unique_and_typable() -> None:
    """No two kernels share a name, and no name reads as a module or a file."""
    names = [kernel.name for kernel in KERNELS]
    assert len(set(names)) == len(names)
    assert not [name for name in names if ":" in name or " " in name]
    assert all(kernel.op in OPS for kernel in KERNELS)
    assert all(kernel.dtypes for kernel in KERNELS)


def test_every_family_is_registered() -> None:
    """Models, planted bugs, controls and strangers are all listed."""
    names = {kernel.name for kernel in KERNELS}
    assert {name.partition(".")[0] for name in names} == {
        "model",
        "faulty",
        "control",
        "cuda",
        "accelerated_scan",
        "fla",
        "jax",
        "mambapy",
        "mlstm_kernels",
        "torch",
        "transformers",
        "mamba_ssm",
        "flash_scan",
    }
    assert {
        "mambapy.pscan",
        "torch.associative_scan.generic",
        "torch.associative_scan.pointwise",
    } <= names


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in KERNELS if kernel.unavailable is None],
    ids=lambda kernel: kernel.name,
)
def test_registered_name_resolves(kernel: Kernel) -> None:
    """Each name gives its kernel, with the op given or not."""
    for op in (None, kernel.op):
        (found,) = resolve_target(kernel.name, op)
        assert (found.name, found.op) == (kernel.name, kernel.op)
        assert found.contract == kernel.contract


def test_listing_and_resolving_load_no_torch() -> None:
    """Listing the kernels and looking one up imports none of the large libraries."""
    program = (
        "import sys\n"
        "from scancheck.registry import kernels, resolve_target\n"
        "assert kernels() and resolve_target('mambapy.pscan', None)\n"
        "assert not {'torch', 'numba', 'mambapy', 'mpmath'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_callable_in_python() -> None:
    """A callable is named after its place and has the default contract and dtype."""
    (kernel,) = resolve_target(scan, "linear_scan")
    assert kernel.call is scan
    assert kernel.name.endswith(":scan")
    assert kernel.contract is None
    assert kernel.dtypes == ("fp32",)
    assert resolve_target(kernel, None) == (kernel,)


def test_file_target(tmp_path: Path) -> None:
    """A file's callable is named as the user wrote it; a Kernel keeps its contract."""
    path = tmp_path / "kernel.py"
    path.write_text(
        "from scancheck.contract import Contract\n"
        "from scancheck.kernel import Kernel\n"
        "def scan(a, b): return b\n"
        "claimed = Kernel(name='x', op='linear_scan', call=scan,\n"
        "    contract=Contract(compute='bf16'))\n"
    )
    (plain,) = resolve_target(f"{path}:scan", "linear_scan")
    assert plain.name == f"{path}:scan"
    (claimed,) = resolve_target(f"{path}:claimed", None)
    assert claimed.name == f"{path}:claimed"
    assert claimed.contract == Contract(compute="bf16")


@pytest.mark.parametrize(
    ("target", "op", "message"),
    [
        pytest.param(
            "model.linear_scan.sequential.plan",
            None,
            "is unknown: expected a registered name, package.module:callable or "
            "path/file.py:callable; did you mean model.linear_scan.sequential.plain",
            id="misspelt",
        ),
        pytest.param(
            "qqqq", None, "`scancheck list` shows the names", id="nothing-like-it"
        ),
        pytest.param("", None, "target '' is unknown", id="empty"),
        pytest.param(
            "kernel.py", None, "as kernel.py:callable", id="file-without-callable"
        ),
        pytest.param(
            "mambapy.pscan",
            "selective_scan",
            "mambapy.pscan is a kernel of linear_scan; got --op selective_scan",
            id="other-op",
        ),
        pytest.param(
            "json:dumps", None, "--op is needed for a callable", id="op-missing"
        ),
        pytest.param("json:dumps", "rwkv8", "op 'rwkv8' is unknown", id="op-unknown"),
        pytest.param(
            "mambapy.pscan",
            "rwkv8",
            "op 'rwkv8' is unknown",
            id="op-unknown-registered",
        ),
        pytest.param(
            "json:__name__", "linear_scan", "expected a callable; got str", id="no-call"
        ),
        pytest.param(scan, None, "test_registry:scan: --op is needed", id="function"),
        pytest.param(
            3, "linear_scan", "expected a callable; got int", id="not-callable"
        ),
    ],
)
def test_refused_target(target: Any, op: str | None, message: str) -> None:
    """Each mistake gets one line with what was expected and what came."""
    with pytest.raises(CaseInvalid) as caught:
        resolve_target(target, op)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unavailable_kernel_gives_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that cannot run here is refused with why, not as unknown."""
    gone = Kernel(
        name="gone.scan", op="linear_scan", call=scan, unavailable="no such device"
    )
    monkeypatch.setattr(registry, "kernels", lambda: (gone,))
    with pytest.raises(KernelUnavailable, match=r"gone\.scan cannot .*no such device"):
        resolve_target("gone.scan", None)
    assert issubclass(KernelUnavailable, ScancheckError)
