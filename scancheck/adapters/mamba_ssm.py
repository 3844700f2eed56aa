"""mamba_ssm.*: Mamba's selective scan and Mamba-2's chunk scan, and a reference.

Conventions, read in mamba_ssm 2.3.2.post1, are the ops' own: `selective_scan_fn` is
channel-major with decays exp(delta A), B and C of one group, of several or constant;
it starts from zero, and its backward does not use the last state's cotangent.
`mamba_chunk_scan_combined` has tokens before heads and states P x N; it clamps dt to
`dt_limit`, by itself to (0, inf), which the op does not know. Its softplus is
log(exp(dt) + 1), which has no digits left where dt is far below zero: a finding.

The first is a compiled extension of the package and wants a CUDA device. The second is
Triton, without a device run by its interpreter. `selective_scan_ref`, a loop in torch,
runs anywhere: it stands in a file that imports the extension, so that it is taken from
the source on its own. Left out is `ssd_chunk_scan_combined_ref`, which takes whole
chunks alone; `mamba_ssm_step` has `selective_state_update`, a single step.
"""

import ast
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from scancheck.adapters.mamba_ssm_interpreted import take_devices_away
from scancheck.adapters.triton_configurations import FIRST, take_first
from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.contract import Contract, Structure
from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable

if TYPE_CHECKING:
    from torch import Tensor

_INSTALL = "pip install 'scancheck[mamba-ssm]'"
PACKAGES = ("mamba-ssm",)
_EXTENSION = "selective_scan_cuda"
_SCAN = "ops/selective_scan_interface.py"
_SSD = "ops/triton/ssd_combined.py"
DTYPES = ("fp32", "fp16", "bf16")
_TENSORS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "delta_softplus")
LONGEST_INTERPRETED = 300  # tokens, as other kernels in chunks of 64
CHUNK = 64  # tokens; the function has no number of its own, the models say 256
_CONTRACTS = {
    # Steps one by one, each of one multiplication and one addition, in fp32.
    "selective_scan_ref": Contract(
        structure=Structure(kind="sequential"), range="sequential"
    ),
    # Operands of products have the format of x, and so have states between chunks. An
    # exponent of a decay is cut off at zero (tl.minimum), so that A has to be negative.
    "mamba_chunk_scan_combined": Contract(
        structure=Structure(kind="chunk", chunk=CHUNK, inner="tree"),
        log="diff",
        gate_gradient="reverse_cumsum",
        operands="storage",
        state="storage",
        state_every=CHUNK,
        domain=(("A", -inf, 0.0),),
    ),
}


def selective_scan_fn(**tensors: "Tensor") -> "tuple[Tensor, Tensor]":
    """y [B, D, L] and last_state [B, D, N] by the compiled extension."""
    function = imported("ops.selective_scan_interface").selective_scan_fn
    y, state = function(**tensors, return_last_state=True)
    return y, state


def selective_scan_ref(**tensors: "Tensor") -> "tuple[Tensor, Tensor]":
    """y [B, D, L] and last_state [B, D, N], token by token in torch."""
    y, state = _reference()(**tensors, return_last_state=True)
    return y, state


def mamba_chunk_scan_combined(**tensors: "Tensor") -> "tuple[Tensor, Tensor]":
    """y [B, T, H, P] and final_states [B, H, P, N], dt as it is given.

    Its parts have about 200 configurations, all timed for each class of sizes if let.
    Raises ValueError without a token: the package would write the first chunk's state,
    which has no memory then (2.3.2.post1, `_state_passing_fwd`).
    """
    if tensors["x"].shape[1] == 0:
        raise ValueError("x: expected a token; mamba_ssm writes beyond a state of none")
    interpreted = tensors["x"].device.type == "cpu"
    if not interpreted:
        take_first()
    module = triton_module("ops.triton.ssd_combined", interpreted)
    y, state = module.mamba_chunk_scan_combined(
        **tensors, chunk_size=CHUNK, dt_limit=(-inf, inf), return_final_states=True
    )
    return y, state.float()


def imported(name: str) -> Any:
    """A module of the package without the package's own imports, which are all models.

    Raises KernelUnavailable where something that it imports is missing or of another
    version.
    """
    whole = "mamba_ssm" in sys.modules
    if not whole:
        bare = ModuleType("mamba_ssm")
        bare.__path__ = [str(_folder())]
        sys.modules["mamba_ssm"] = bare
    try:
        return import_module(f"mamba_ssm.{name}")
    except (ImportError, OSError) as error:
        raise KernelUnavailable(
            f"mamba_ssm {_version()} cannot be imported: {error}"
        ) from error
    finally:
        if not whole:
            del sys.modules["mamba_ssm"]


@cache
def triton_module(name: str, interpreted: bool) -> Any:
    """A module of the package with Triton kernels, on the CPU interpreted ones."""
    if not interpreted:
        return imported(name)
    activate()
    module = imported(name)
    take_devices_away()
    return module


@cache
def _reference() -> Any:
    """selective_scan_ref, compiled from its own lines."""
    import torch
    from einops import rearrange, repeat

    functional = torch.nn.functional
    names = {"torch": torch, "F": functional, "rearrange": rearrange, "repeat": repeat}
    source = _folder() / _SCAN
    lines = ast.Module([_functions(_SCAN)["selective_scan_ref"]], type_ignores=[])
    exec(compile(lines, str(source), "exec"), names)
    return names["selective_scan_ref"]


def _folder() -> Path:
    spec = find_spec("mamba_ssm")
    return Path(*(spec and spec.submodule_search_locations) or ("",))


@cache
def _functions(source: str) -> dict[str, ast.FunctionDef]:
    """Functions of one of the package's files, unimported."""
    path = _folder() / source
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def unavailable(function: str, source: str, *needed: str) -> str | None:
    """Why a function cannot run here, or None; `needed` are modules it imports."""
    if find_spec("mamba_ssm") is None:
        return f"mamba_ssm is not installed; {_INSTALL}"
    if function not in _functions(source):
        return f"mamba_ssm {_version()} has no {function}; {_INSTALL}"
    for module in needed:
        if find_spec(module) is not None:
            continue
        if module == _EXTENSION:
            return (
                f"mamba_ssm {_version()} was built without its extension {_EXTENSION}; "
                "build it where there is nvcc, with MAMBA_FORCE_BUILD=TRUE"
            )
        return f"{module} is not installed; {_INSTALL}"
    return None


def _on_a_device(reason: str | None) -> str | None:
    """The reason, or that there is no CUDA device here."""
    lacking = device_unavailable()
    return reason or (lacking and f"it runs on a CUDA device alone: {lacking}")


def _version() -> str:
    try:
        return version("mamba-ssm")
    except PackageNotFoundError:
        return "of unknown version"


def mamba_ssm_kernels() -> tuple[Kernel, ...]:
    """The two kernels and the reference."""
    fast = unavailable("selective_scan_fn", _SCAN, _EXTENSION, "triton", "einops")
    combined = unavailable("mamba_chunk_scan_combined", _SSD, "triton", "einops")
    layouts = ("keys=grouped", "keys=constant")
    interpreted = device_unavailable() is not None
    chunked = _CONTRACTS["mamba_chunk_scan_combined"]
    if interpreted:  # tl.cumsum is NumPy's there
        structure = replace(chunked.structure, inner="sequential")
        chunked = replace(chunked, structure=structure)
    return (
        Kernel(
            name="mamba_ssm.selective_scan_fn",
            op="selective_scan",
            call=selective_scan_fn,
            dtypes=DTYPES,
            gradients=True,
            supports=_TENSORS,
            layouts=layouts,
            unavailable=_on_a_device(fast),
            packages=PACKAGES,
            devices=("cuda",),
        ),
        Kernel(
            name="mamba_ssm.selective_scan_ref",
            op="selective_scan",
            call=selective_scan_ref,
            contract=_CONTRACTS["selective_scan_ref"],
            dtypes=DTYPES,
            gradients=True,
            supports=_TENSORS,
            layouts=layouts,
            unavailable=unavailable("selective_scan_ref", _SCAN, "einops"),
            packages=PACKAGES,
        ),
        Kernel(
            name="mamba_ssm.mamba_chunk_scan_combined",
            op="ssd",
            call=mamba_chunk_scan_combined,
            contract=chunked,
            dtypes=DTYPES[:2] if interpreted else DTYPES,
            chunk=CHUNK,
            gradients=True,
            supports=(
                *("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states"),
                "dt_softplus",
            ),
            unavailable=combined,
            packages=PACKAGES,
            longest=LONGEST_INTERPRETED if interpreted else None,
            note=BF16_IS_WRONG if interpreted else f"each Triton kernel with {FIRST}",
            devices=("cpu",) if interpreted else ("cuda",),
        ),
    )
