"""mlstm_kernels.*: the mLSTM forms of NX-AI's package, in torch and in Triton.

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
- `chunkwise.triton_limit_chunk` and `.triton_xl_chunk`: the same in Triton, with
  chunks of 64 and of 128, forwards alone, for that backward pass is theirs too;
- `recurrent.native`: token by token, gradients by torch; in 16 bits scaled q, the outer
  product of k and v and what is read are rounded, and the state is fp32;
- `recurrent.triton`: the same in Triton, forwards alone; what a step rounds in 16 bits
  is the decay as well.

Chunkwise forms take whole chunks alone. What is missing of the last one is filled up
with tokens that change nothing, f = inf, i = -inf and zeros (the package's own wrapper
takes 25 and -25, which moves an m below -25). Those in torch are judged in fp32 and
fp64: in 16 bits they raise where a state is given, and the op's is fp32.

The Triton forms take block pointers, which Triton 3.9 has removed, compiled and
interpreted. Where there is no CUDA device they run in Triton's interpreter, up to
`LONGEST_INTERPRETED` tokens, and what the package hands to torch.compile runs eagerly.

What is wrong with them: with one head and several batch rows the chunk forms read other
rows where heads came after tokens, as here and in the models. `x.contiguous()` leaves
such a transposed tensor as it is, an axis of one element being in order with any
stride, and that stride is taken for the one from row to row. And triton_xl_chunk (for
its states) and recurrent.triton take log(sigmoid(f)), which is off by some units of 1,
however small it is: from f = 17 on it is zero. Below f = -88 it is minus infinity.
"""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scancheck.adapters.mlstm_kernels_forms import FORMS, LARGE, SMALL, Form
from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable

if TYPE_CHECKING:
    from torch import Tensor

_INSTALL = "pip install 'scancheck[mlstm-kernels]'"
LICENCE = "NXAI Community License, not Apache-2.0: see it before commercial use"
# Tokens: four chunks of 64 and a broken one; a single step costs what a chunk does.
LONGEST_INTERPRETED = {"chunk": 300, "sequential": 70}
_STATES = {
    "initial_state": "c_initial",
    "initial_normalizer": "n_initial",
    "initial_max": "m_initial",
}
_TENSORS = ("q", "k", "v", "i", "f", *_STATES)


def call(form: Form, **tensors: "Tensor") -> "tuple[Tensor, ...]":
    """h [B, T, H, V], final_state, final_normalizer and final_max, in the op's places.

    Raises KernelUnavailable where the package cannot be imported.
    """
    interpreted = form.triton and tensors["q"].device.type == "cpu"
    if interpreted:
        activate()
    function = _function(form.module, form.function)
    given = _states_of(tensors)
    steps, dtype = tensors["q"].shape[1], tensors["q"].dtype
    missing = missing_tokens(form.contract.structure.chunk, steps)
    for name, fill in (("q", 0.0), ("k", 0.0), ("v", 0.0), ("i", -inf), ("f", inf)):
        given[name] = _heads_first(tensors[name], missing, fill)
    if form.contract.structure.kind == "sequential":
        given["dtype_state"] = given["c_initial"].dtype
    with _eager(interpreted):
        h, (memory, normalizer, largest) = function(**given, return_last_states=True)
    h = h[:, :, :steps].transpose(1, 2).to(dtype)
    return h, memory, normalizer, largest.squeeze(-1)


def missing_tokens(chunk: int | None, steps: int) -> int:
    """How many tokens a sequence lacks for whole chunks.

    xl_chunk has one of 16, 32 or 64 tokens where that is enough.
    """
    if chunk is None:
        return 0
    if chunk == LARGE and 0 < steps <= SMALL[-1]:
        return next(short for short in SMALL if steps <= short) - steps
    return -steps % chunk


@contextmanager
def _eager(interpreted: bool) -> "Iterator[None]":
    """Within, torch compiles nothing, where kernels are interpreted."""
    if not interpreted:
        yield
        return
    import torch

    with torch.compiler.set_stance("force_eager"):
        yield


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
    return no_block_pointers() if form.triton else None


def no_block_pointers() -> str | None:
    """Why Triton cannot run kernels with tl.make_block_ptr, or None.

    Told from its source, without importing it: what was removed only raises.
    """
    endings = [
        type(node.body[-1])
        for source in _sources("triton", Path("language", "core.py"))
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "make_block_ptr"
    ]
    if endings and ast.Raise not in endings:
        return None
    if find_spec("triton") is None:
        return "triton is not installed; pip install 'triton<3.9'"
    return (
        f"triton {_version('triton')} has no block pointers (tl.make_block_ptr), which "
        "this form is written with; pip install 'triton<3.9'"
    )


def _functions(module: str) -> frozenset[str]:
    """What a module of the package defines or imports, unimported."""
    inside = Path("torch", *module.split("."))
    found: set[str] = set()
    places = inside.with_suffix(".py"), inside / "__init__.py"
    for path in _sources("mlstm_kernels", *places):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def _sources(package: str, *places: Path) -> Iterator[Path]:
    """The files among those places in an installed package that are there."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for place in places:
            if Path(folder, place).is_file():
                yield Path(folder, place)


def _version(package: str = "mlstm_kernels") -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def mlstm_kernels() -> tuple[Kernel, ...]:
    """Every form as a kernel."""
    interpreted = device_unavailable() is not None
    return tuple(_kernel(name, form, interpreted) for name, form in FORMS.items())


def _kernel(name: str, form: Form, interpreted: bool) -> Kernel:
    dtypes, note = form.dtypes, form.note
    limits: dict[str, Any] = {}
    if form.triton:
        limits["devices"] = ("cpu",) if interpreted else ("cuda",)
    if form.triton and interpreted:
        limits["longest"] = LONGEST_INTERPRETED[form.contract.structure.kind]
        dtypes = tuple(dtype for dtype in dtypes if dtype != "bf16")
        note += f"{BF16_IS_WRONG}; "
    return Kernel(
        name=f"mlstm_kernels.{name}",
        op="mlstm",
        call=partial(call, form),
        contract=form.contract,
        dtypes=dtypes,
        chunk=form.contract.structure.chunk,
        gradients=form.gradients,
        supports=_TENSORS,
        unavailable=unavailable(form),
        packages=("mlstm_kernels",),
        note=f"{note}{LICENCE}",
        **limits,
    )
