"""mlstm_kernels.*: the mLSTM forms of NX-AI's package that are written in torch.

Conventions, read in mlstm_kernels 2.0.6: heads before tokens, q, k [B, NH, S, DK], v
[B, NH, S, DV], gates i, f [B, NH, S] before exp and logsigmoid; the state is three
tensors, c [B, NH, DK, DV], n [B, NH, DK] and m [B, NH, 1], given together or not at
all, zero where absent; q is scaled by DK**-0.5 and the denominator has the floor 1e-6.
All of it is the op's but the places of axes.

- `chunkwise.native_autograd`: chunks of 64, decays as exponentials of differences of
  summed log forget gates, gradients by torch;
- `chunkwise.native_custbw`: the same forwards, and a backward pass by hand that leaves
  out what goes through the denominator and the maximum, since a norm over heads that
  follows in the model is said to cancel it: its gradients are not the op's;
- `recurrent.native`: token by token, gradients by torch; in 16 bits scaled q, the outer
  product of k and v and what is read are rounded, and the state is fp32.

Chunkwise forms take whole chunks alone. What is missing of the last one is filled up
with tokens that change nothing, f = inf, i = -inf and zeros (the package's own wrapper
takes 25 and -25, which moves an m below -25). They are judged in fp32 and fp64: in 16
bits they raise where a state is given, and the op's is fp32.

The Triton forms (limit_chunk, xl_chunk) are not adapted. They take block pointers,
which Triton 3.9 has removed, compiled and interpreted, and they load and store n
without a mask: a width that is no power of two is read and written beyond its end.
"""

import ast
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scancheck.contract import Contract, Structure
from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel

if TYPE_CHECKING:
    from torch import Tensor

_INSTALL = "pip install 'scancheck[mlstm-kernels]'"
LICENCE = "NXAI Community License, not Apache-2.0: see it before commercial use"
CHUNK = 64  # tokens, the package's own number
_STATES = {
    "initial_state": "c_initial",
    "initial_normalizer": "n_initial",
    "initial_max": "m_initial",
}
_TENSORS = ("q", "k", "v", "i", "f", *_STATES)


class Form(NamedTuple):
    """One function of the package."""

    module: str  # below mlstm_kernels.torch
    function: str
    contract: Contract
    dtypes: tuple[str, ...]
    gradients: bool
    note: str = ""  # beside the licence


_IN_CHUNKS = Contract(
    structure=Structure(kind="chunk", chunk=CHUNK),
    log="diff",
    gate_gradient="reverse_cumsum",
)
FORMS = {
    "chunkwise.native_autograd": Form(
        module="chunkwise.native",
        function="mlstm_chunkwise__native_autograd",
        contract=_IN_CHUNKS,
        dtypes=("fp32", "fp64"),
        gradients=True,
    ),
    "chunkwise.native_custbw": Form(
        module="chunkwise.native",
        function="mlstm_chunkwise__native_custbw",
        contract=_IN_CHUNKS,
        dtypes=("fp32", "fp64"),
        gradients=False,
        note="its gradients leave out the denominator's share; ",
    ),
    "recurrent.native": Form(
        module="recurrent.native_sequence",
        function="mlstm_recurrent_sequence__native_fw",
        contract=Contract(compute="storage", structure=Structure(kind="sequential")),
        dtypes=("fp32", "fp16", "bf16", "fp64"),
        gradients=True,
    ),
}


def call(form: Form, **tensors: "Tensor") -> "tuple[Tensor, ...]":
    """h [B, T, H, V], final_state, final_normalizer and final_max, in the op's places.

    Raises KernelUnavailable where the package cannot be imported.
    """
    function = _function(form.module, form.function)
    given = _states_of(tensors)
    steps, dtype = tensors["q"].shape[1], tensors["q"].dtype
    missing = -steps % CHUNK if form.contract.structure.kind == "chunk" else 0
    for name, fill in (("q", 0.0), ("k", 0.0), ("v", 0.0), ("i", -inf), ("f", inf)):
        given[name] = _heads_first(tensors[name], missing, fill)
    if form.contract.structure.kind == "sequential":
        given["dtype_state"] = given["c_initial"].dtype
    h, (memory, normalizer, largest) = function(**given, return_last_states=True)
    h = h[:, :, :steps].transpose(1, 2).to(dtype)
    return h, memory, normalizer, largest.squeeze(-1)


def _heads_first(x: "Tensor", missing: int, fill: float) -> "Tensor":
    """[B, T, H, ...] -> [B, H, T + missing, ...]."""
    if missing:
        import torch

        batch, _, *rest = x.shape
        x = torch.cat([x, x.new_full((batch, missing, *rest), fill)], dim=1)
    return x.transpose(1, 2)


def _states_of(tensors: "dict[str, Tensor]") -> dict[str, Any]:
    """All three parts of the initial state, zero where one is absent."""
    import torch

    q, v = tensors["q"], tensors["v"]
    batch, _, heads, keys = q.shape
    shapes = {
        "initial_state": (batch, heads, keys, v.shape[-1]),
        "initial_normalizer": (batch, heads, keys),
        "initial_max": (batch, heads),
    }
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    found = {
        name: tensors.get(name, torch.zeros(shape, dtype=dtype, device=q.device))
        for name, shape in shapes.items()
    }
    found["initial_max"] = found["initial_max"].unsqueeze(-1)
    return {_STATES[name]: x for name, x in found.items()}


def _function(module: str, name: str) -> Any:
    try:
        return getattr(import_module(f"mlstm_kernels.torch.{module}"), name)
    except ImportError as error:
        raise KernelUnavailable(
            f"mlstm_kernels {_version()} cannot be imported: {error}"
        ) from error


def unavailable(form: Form) -> str | None:
    """Why the form cannot run here, or None."""
    if find_spec("mlstm_kernels") is None:
        return f"mlstm_kernels is not installed; {_INSTALL}; {LICENCE}"
    if find_spec("einops") is None:
        return f"einops is not installed; {_INSTALL}"
    if form.function not in _functions(form.module):
        return f"mlstm_kernels {_version()} has no {form.function}; {_INSTALL}"
    return None


def _functions(module: str) -> frozenset[str]:
    """What a module of the package defines or imports, unimported."""
    spec = find_spec("mlstm_kernels")
    inside = Path("torch", *module.split("."))
    found: set[str] = set()
    for folder in (spec and spec.submodule_search_locations) or ():
        for source in (inside.with_suffix(".py"), inside / "__init__.py"):
            path = Path(folder, source)
            if path.is_file():
                for node in ast.parse(path.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.FunctionDef):
                        found.add(node.name)
                    elif isinstance(node, ast.ImportFrom):
                        found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def _version() -> str:
    try:
        return version("mlstm_kernels")
    except PackageNotFoundError:
        return "of unknown version"


def mlstm_kernels() -> tuple[Kernel, ...]:
    """Every form as a kernel."""
    return tuple(
        Kernel(
            name=f"mlstm_kernels.{name}",
            op="mlstm",
            call=partial(call, form),
            contract=form.contract,
            dtypes=form.dtypes,
            chunk=form.contract.structure.chunk,
            gradients=form.gradients,
            supports=_TENSORS,
            unavailable=unavailable(form),
            packages=("mlstm_kernels",),
            note=f"{form.note}{LICENCE}",
        )
        for name, form in FORMS.items()
    )
