"""fla.*: the kernels of flash-linear-attention that `fla_rows` lists, as our ops.

They agree with the ops in this: tensors are [B, T, heads, width] and states K x V in
fp32, gates are natural logs, the scale is K**-0.5 where none is given, and a call
returns the output and, when asked, the final state. They take arguments by name here,
so that their order (g before beta, w before k) is no concern.

They are Triton kernels: compiled where there is a CUDA device, else run on the CPU by
Triton's interpreter (`triton_interpreter`).
"""

import ast
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scancheck.adapters.fla_rows import RECURRENT, ROWS, Row
from scancheck.adapters.triton_configurations import FIRST, take_first
from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable
from scancheck.ops import op_named
from scancheck.ops.constant_decays import has_constant_decays

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "flash-linear-attention"
_DISTRIBUTIONS = ("fla-core", _NAME)  # its kernels alone, and what once held all of it
_INSTALL = "pip install 'scancheck[fla]'"
_NEEDED = {"fla": _NAME, "einops": "einops", "triton": "triton"}  # module -> package
# How the chunk forms with a rank-one transition invert their triangles: solve_tril and
# the kernels made of it invert blocks of 16 rows and merge them, dplr's go row by row.
INVERSES = {
    "delta_rule": "block",
    "gated_delta_rule": "block",
    "kda": "block",
    "rwkv7": "substitution",
}
# Families of diagonal chunk forms, and how they form decays. In fla/ops the operands
# of their products have the dtype of the tensors: common/chunk_h.py and chunk_o.py
# round v times its decay to the end of the chunk, masked scores and every state that
# is read, gla/chunk.py and rwkv6/chunk.py q and k times decays to the start of a block,
# k to the end of the chunk. Sums are in fp32, which tensor cores cut off.
CHUNKS = {
    "linear_attn": "none",
    "simple_gla": "diff",
    "retention": "diff",
    "lightning_attn": "diff",
    "gla": "diff",
    "rwkv6": "diff",
}
BY_BLOCKS = ("gla", "rwkv6")  # a decay is two exponentials, with the errors of both
AT_THE_END = 2**30  # steps between stores of a state that only its return rounds
LONGEST_INTERPRETED = 300  # tokens: four chunks of 64; longer ones take minutes each
_NO_DISPATCH = "FLA_DISABLE_BACKEND_DISPATCH"


def call(row: Row, **tensors: "Tensor") -> "tuple[Tensor, Tensor]":
    """Output and final state of the row's kernel, in the op's layouts.

    Where it wants as many key heads as value heads, q and k are repeated, neighbours
    sharing a key head, as fla's own layers do; their gradients are summed by torch. A
    state in fp16 or bf16, which fused_recurrent_hgrn returns, is handed on in fp32.
    """
    if row.one_to_one:
        shared = tensors["v"].shape[2] // tensors["k"].shape[2]
        if shared > 1:
            for name in ("q", "k"):
                tensors[name] = tensors[name].repeat_interleave(shared, dim=2)
    on_cpu = tensors[row.tensors[0]].device.type == "cpu"
    function = _function(row.family, row.function, on_cpu)
    given = {row.names.get(name, name): tensor for name, tensor in tensors.items()}
    output, state = function(**given, **row.fixed, output_final_state=True)
    return output, state.float()


@cache
def _function(family: str, name: str, interpreted: bool) -> Any:
    """The function of fla.ops, imported so that it can run."""
    if not interpreted:
        take_first()
        return getattr(import_module(f"fla.ops.{family}"), name)
    activate()
    with _without_dispatch(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Triton is not supported")
        return getattr(import_module(f"fla.ops.{family}"), name)


@contextmanager
def _without_dispatch() -> Iterator[None]:
    """Within, fla does not look for the other libraries' kernels, all for devices."""
    before = os.environ.get(_NO_DISPATCH)
    os.environ[_NO_DISPATCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_DISPATCH]
        else:
            os.environ[_NO_DISPATCH] = before


def unavailable(family: str, function: str) -> str | None:
    """Why the function cannot run here, or None."""
    for module, package in _NEEDED.items():
        if find_spec(module) is None:
            return f"{package} is not installed; {_INSTALL}"
    if function not in _functions(family):
        return f"{_NAME} {_version()} has no {function}"
    return None


@cache
def _functions(family: str) -> frozenset[str]:
    """What fla.ops.<family> offers, read from its source: importing it loads torch."""
    spec = find_spec("fla")
    found: set[str] = set()
    for folder in (spec and spec.submodule_search_locations) or ():
        source = Path(folder, "ops", family, "__init__.py")
        if source.is_file():
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def _version() -> str:
    for distribution in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            return version(distribution)
    return "of unknown version"


def contract_of(row: Row, *, interpreted: bool = False) -> Contract | None:
    """What a kernel's form says of its rounding; None: the default contract.

    A kernel whose heads are repeated for it gives each one's gradient in the tensors'
    dtype. A recurrent form goes token by token, with decays as exponentials:
    retention's come as logs, fp32's of its constants. Chunks are products of operands
    in the dtype of the tensors, with decays as exponentials of differences of summed
    logs; those of retention and lightning_attn are logs of constants. With a rank-one
    transition gates for each key are differences within parts of 16 tokens, and logs
    are summed by tl.cumsum, a tree where it is compiled. Gates of diagonal transitions
    have their gradient as a sum in reverse, in hgrn alone step by step. The recurrent
    hgrn returns its state, and takes that one's cotangent, in the dtype of the tensors.
    """
    gated = not {"g", "gk", "w"}.isdisjoint(row.tensors)
    summed = gated and op_named(row.op).diagonal and row.family != "hgrn"
    gradient = "reverse_cumsum" if summed else "direct"
    constant = has_constant_decays(op_named(row.op))
    if row.form == RECURRENT:
        sequential = Structure(kind="sequential")
        return Contract(
            structure=sequential,
            state="storage" if row.family == "hgrn" else "compute",
            state_every=AT_THE_END if row.family == "hgrn" else 1,
            constant_decay="exp" if constant else "rounded",
            gate_gradient=gradient,
            gradient_parts="storage" if row.one_to_one else "compute",
        )
    default = Contract()
    if row.op in INVERSES:
        assert row.chunk is not None
        inner = "sequential" if interpreted else "tree"
        return Contract(
            structure=Structure(kind="chunk", chunk=row.chunk, inner=inner),
            log="diff" if gated else "none",
            operands="storage",
            accumulate="truncate",
            inverse=INVERSES[row.op],
        )
    if row.family not in CHUNKS:
        return None
    twice = replace(default.exp, e0=2 * default.exp.e0)
    return Contract(
        structure=Structure(kind="chunk", chunk=row.chunk),
        log=CHUNKS[row.family],
        gate_gradient=gradient,
        exp=twice if row.family in BY_BLOCKS else default.exp,
        operands="storage",
        accumulate="truncate",
    )


def fla_kernels() -> tuple[Kernel, ...]:
    """Every row as a kernel."""
    return tuple(_kernel(row) for row in ROWS)


def _kernel(row: Row) -> Kernel:
    interpreted = device_unavailable() is not None
    dtypes = row.dtypes
    if interpreted:
        dtypes = tuple(dtype for dtype in dtypes if dtype != "bf16")
    return Kernel(
        name=f"fla.{row.function}",
        op=row.op,
        call=partial(call, row),
        contract=contract_of(row, interpreted=interpreted),
        dtypes=dtypes,
        chunk=row.chunk,
        gradients=row.gradients,
        supports=(*row.tensors, *row.calls),
        unavailable=unavailable(row.family, row.function),
        longest=LONGEST_INTERPRETED if interpreted else None,
        note=BF16_IS_WRONG if interpreted else f"each Triton kernel with {FIRST}",
        devices=("cpu",) if interpreted else ("cuda",),
    )
