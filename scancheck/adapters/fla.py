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

from scancheck.adapters.fla_calls import HANDINGS
from scancheck.adapters.fla_gradients import gradient_sizes, no_gradients
from scancheck.adapters.fla_rows import KEY_SUM, RECURRENT, ROWS, Row
from scancheck.adapters.triton_configurations import FIRST, take_first
from scancheck.adapters.triton_interpreter import BF16_IS_WRONG, activate
from scancheck.contract import Contract, Structure
from scancheck.kernel import Kernel
from scancheck.kernels.cuda.toolkit import device_unavailable
from scancheck.ops import op_named
from scancheck.ops.constant_decays import has_constant_decays
from scancheck.recipes.taken_sizes import ONE_TO_ONE

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "flash-linear-attention"
_DISTRIBUTIONS = ("fla-core", _NAME)  # its kernels alone, and what once held all of it
_INSTALL = "pip install 'scancheck[fla]'"
_NEEDED = {"fla": _NAME, "einops": "einops", "triton": "triton"}  # module -> package
# How the chunk forms with a rank-one transition invert their triangles: solve_tril and
# the kernels made of it invert blocks of 16 rows and merge them, dplr's go row by row.
# gated_delta_product has chunks of 64 steps, as its contract counts them, and reads
# over those of 64 tokens: what that rounds is no larger than what X and the columns p
# round in the states between.
INVERSES = {
    "delta_rule": "block",
    "gated_delta_rule": "block",
    "gated_delta_product": "block",
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


def call(row: Row, **tensors: "Tensor") -> "tuple[Tensor, ...]":
    """Output and final state of the row's kernel, in the op's layouts.

    A state in fp16 or bf16, which fused_recurrent_hgrn returns, is handed on in fp32.
    """
    first = tensors[row.tensors[0]]
    function = _function(row.family, row.function, first.device.type == "cpu")
    handing = HANDINGS[row.handed]
    arguments = handing.given(tensors)
    given = {row.names.get(name, name): x for name, x in arguments.items()}
    output, state = function(**given, **row.fixed, output_final_state=True)
    return handing.taken(output, state, first.dtype)


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


def unavailable(row: Row) -> str | None:
    """Why the row's function cannot run here, or None."""
    for module, package in _NEEDED.items():
        if find_spec(module) is None:
            return f"{package} is not installed; {_INSTALL}"
    if row.function not in _names(row.family, "__init__.py"):
        return f"{_NAME} {_version()} has no {row.function}; {_INSTALL}"
    if row.needs is not None and row.needs not in _names(row.family, "utils.py"):
        return (
            f"{row.function} of {_NAME} {_version()} has no {row.needs}: its state "
            f"lacks the sum of keys; {_INSTALL}"
        )
    return None


@cache
def _names(family: str, file: str) -> frozenset[str]:
    """What a file of fla.ops.<family> offers, read from its source.

    Importing it loads torch.
    """
    spec = find_spec("fla")
    found: set[str] = set()
    for folder in (spec and spec.submodule_search_locations) or ():
        source = Path(folder, "ops", family, file)
        if source.is_file():
            for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    found |= {alias.asname or alias.name for alias in node.names}
                elif isinstance(node, ast.FunctionDef):
                    found.add(node.name)
    return frozenset(found)


def _version() -> str:
    for distribution in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            return version(distribution)
    return "of unknown version"


def contract_of(row: Row, *, interpreted: bool = False) -> Contract | None:
    """What a kernel promises: how it rounds, and whether it shares key heads."""
    contract = _rounding_of(row, interpreted=interpreted)
    if not row.one_to_one:
        return contract
    return replace(contract or Contract(), heads=ONE_TO_ONE)


def _rounding_of(row: Row, *, interpreted: bool) -> Contract | None:
    """What a kernel's form says of its rounding; None: the default contract.

    A recurrent form goes token by token, with decays as exponentials: retention's
    come as logs, fp32's of its constants. Chunks are products of operands in the dtype
    of the tensors, with decays as exponentials of differences of summed logs; those of
    retention and lightning_attn are logs of constants. With a rank-one transition gates
    for each key are differences within parts of 16 tokens, and logs are summed by
    tl.cumsum, a tree where it is compiled. On a device the inverse's products are in
    TF32, cut off, which no contract says for these alone: in fp16 rho sees it. Gates of
    diagonal transitions have their gradient as a sum in reverse, in hgrn alone step by
    step. The recurrent hgrn returns its state, and takes that one's cotangent, in the
    dtype of the tensors; both hgrn take the states of gradients from the outputs as
    they are stored. What is normalised has its sum of keys and its quotient in the
    dtype of the tensors, and with them all of its operations, for a contract has no
    other word for that.
    """
    gated = not {"g", "gk", "w"}.isdisjoint(row.tensors)
    summed = gated and op_named(row.op).diagonal and row.family != "hgrn"
    gradient = "reverse_cumsum" if summed else "direct"
    compute = "storage" if row.handed == KEY_SUM else "fp32"
    constant = has_constant_decays(op_named(row.op))
    saved = "storage" if row.family == "hgrn" else "compute"
    if row.form == RECURRENT:
        return Contract(
            compute=compute,
            structure=Structure(kind="sequential"),
            state="storage" if row.family == "hgrn" else "compute",
            state_every=AT_THE_END if row.family == "hgrn" else 1,
            gradient_state=saved,
            constant_decay="exp" if constant else "rounded",
            gate_gradient=gradient,
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
        return Contract(gradient_state=saved) if saved == "storage" else None
    twice = replace(default.exp, e0=2 * default.exp.e0)
    return Contract(
        compute=compute,
        structure=Structure(kind="chunk", chunk=row.chunk),
        log=CHUNKS[row.family],
        gate_gradient="chunk_sums" if row.family in BY_BLOCKS else gradient,
        exp=twice if row.family in BY_BLOCKS else default.exp,
        operands="storage",
        accumulate="truncate",
    )


def fla_kernels() -> tuple[Kernel, ...]:
    """Every row as a kernel."""
    return tuple(_kernel(row) for row in ROWS)


def _kernel(row: Row) -> Kernel:
    interpreted = device_unavailable() is not None
    refused = no_gradients(row, interpreted=interpreted)
    note = BF16_IS_WRONG if interpreted else f"each Triton kernel with {FIRST}"
    if row.gradients and refused is not None:
        note += f"; no gradients here: {refused}"
    dtypes = row.dtypes
    if interpreted:
        dtypes = tuple(dtype for dtype in dtypes if dtype != "bf16")
    return Kernel(
        name=row.name,
        op=row.op,
        call=partial(call, row),
        contract=contract_of(row, interpreted=interpreted),
        dtypes=dtypes,
        chunk=row.chunk,
        gradients=refused is None,
        no_gradients=refused,
        gradient_sizes=gradient_sizes(row, interpreted=interpreted),
        supports=(*row.tensors, *row.calls),
        unavailable=unavailable(row),
        packages=_DISTRIBUTIONS,
        longest=LONGEST_INTERPRETED if interpreted else None,
        note=note,
        devices=("cpu",) if interpreted else ("cuda",),
    )
