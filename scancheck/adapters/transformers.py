"""transformers.*: functions of transformers' modelling files that take a recurrence.

They are what its models fall back to without the packages for GPUs (fla, mamba_ssm),
plain torch on any device, and autograd gives the gradients. Each is written once and
copied into a file for every model; the file that is named here stands for all of them:

- Qwen3-Next for Qwen3.5, Qwen4, OLMo hybrid and Lara (`torch_*_gated_delta_rule`),
- Kimi Linear for GLM 5 and Bailing hybrid (`*_kimi_delta_attention`),
- Mamba-2 for Bamba, Zamba2, Falcon-H1, Nemotron-H and Granite (`mamba2_chunk_scan`),
- Mamba for Falcon-Mamba, Jamba and Zamba (`mamba_selective_scan`).

Conventions, read in transformers 5.24.0. Layouts are the ops' own: tokens before heads
and states K x V, the selective scan channel-major, Mamba-2's states P x N. Gates are
natural logs and the scale is K**-0.5, not to be set. Keys and queries are normalised
only where `use_qk_l2norm_in_kernel` says so, which is not said here. Values are
converted to fp32 and outputs back, except in the two scans: those apply dt's bias and
softplus in dt's own format, and the selective scan reads its state in that format, too.
Mamba-2's chunks clamp dt to `dt_limit`, by itself to (0, inf), which the op does not
know; its output is left in fp32, and the models convert it.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from inspect import unwrap
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scancheck.contract import Contract, Structure
from scancheck.errors import KernelUnavailable
from scancheck.kernel import Kernel
from scancheck.recipes.taken_sizes import ONE_TO_ONE

if TYPE_CHECKING:
    from torch import Tensor

_INSTALL = "pip install 'scancheck[transformers]'"
# A modelling file imports these where they are, and runs their kernels in place of its
# own. They are another's, judged by adapters of their own, and fla must not be imported
# before Triton's interpreter is on.
_TAKES_OVER = ("fla", "mamba_ssm", "causal_conv1d")
CHUNK = 64  # tokens; Mamba-2's function has no number of its own, its models say 256
_DTYPES = ("fp32", "fp16", "bf16")
_SEQUENTIAL = Contract(structure=Structure(kind="sequential"))
_IN_CHUNKS = Contract(
    structure=Structure(kind="chunk", chunk=CHUNK),
    log="diff",
    gate_gradient="reverse_cumsum",
    inverse="substitution",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One function, and how its conventions differ from the op's."""

    model: str  # its folder in transformers.models
    function: str
    op: str
    tensors: tuple[str, ...]  # the op's inputs and switches that it takes
    contract: Contract
    names: Mapping[str, str]  # op's name -> transformers'
    fixed: Mapping[str, Any]  # further arguments
    dtypes: tuple[str, ...] = _DTYPES
    one_to_one: bool = False  # wants as many key heads as value heads
    needed: frozenset[str] = field(init=False)  # its parameters that are given

    def __post_init__(self) -> None:
        given = {self.names.get(name, name) for name in self.tensors}
        object.__setattr__(self, "needed", frozenset(given | set(self.fixed)))


_DELTA = ("q", "k", "v", "g", "beta", "initial_state")
_NAMES = {"q": "query", "k": "key", "v": "value"}
_STATE = {"output_final_state": True}
ROWS = (
    Row(
        model="qwen3_next",
        function="torch_chunk_gated_delta_rule",
        op="gated_delta_rule",
        tensors=_DELTA,
        contract=_IN_CHUNKS,
        names=_NAMES,
        fixed={"chunk_size": CHUNK, **_STATE},
    ),
    Row(
        model="qwen3_next",
        function="torch_recurrent_gated_delta_rule",
        op="gated_delta_rule",
        tensors=_DELTA,
        contract=_SEQUENTIAL,
        names=_NAMES,
        fixed=_STATE,
    ),
    Row(
        model="kimi_linear",
        function="chunk_kimi_delta_attention",
        op="kda",
        tensors=_DELTA,
        contract=_IN_CHUNKS,
        names=_NAMES,
        fixed={"chunk_size": CHUNK, **_STATE},
        one_to_one=True,
    ),
    Row(
        model="kimi_linear",
        function="recurrent_kimi_delta_attention",
        op="kda",
        tensors=_DELTA,
        contract=_SEQUENTIAL,
        names=_NAMES,
        fixed={"initial_state": None, **_STATE},  # it has no default
        one_to_one=True,
    ),
    Row(
        model="mamba2",
        function="mamba2_chunk_scan",
        op="ssd",
        tensors=(
            *("x", "dt", "A", "B", "C", "D", "dt_bias", "initial_states"),
            "dt_softplus",
        ),
        contract=_IN_CHUNKS,
        names={"x": "hidden_states"},
        fixed={
            "chunk_size": CHUNK,
            "dt_limit": (-inf, inf),
            "return_final_states": True,
        },
    ),
    Row(
        model="mamba",
        function="mamba_selective_scan",
        op="selective_scan",
        tensors=(
            *("u", "delta", "A", "B", "C", "D", "z", "delta_bias"),
            "delta_softplus",
        ),
        contract=_SEQUENTIAL,
        names={"u": "hidden_states", "delta": "dt"},
        fixed={"return_last_state": True},
    ),
)


def call(row: Row, **tensors: "Tensor") -> "tuple[Tensor, Tensor]":
    """Output and final state of the row's function, in the op's layouts.

    The output is handed on in the dtype of the inputs, the state in fp32 and, where a
    loop over no token hands the initial state itself back, in memory of its own.
    """
    dtype = tensors[row.tensors[0]].dtype
    given = {row.names.get(name, name): tensor for name, tensor in tensors.items()}
    output, state = _function(row.model, row.function)(**{**row.fixed, **given})
    state = state.float()
    if any(state is tensor for tensor in tensors.values()):
        state = state.clone()
    return output.to(dtype), state


@cache
def _function(model: str, name: str) -> Any:
    """The function in torch, without what transformers puts in its place.

    Raises KernelUnavailable where a package that transformers imports is missing.
    """
    parent, _, module = _module_of(model).rpartition(".")
    known = f"{parent}.{module}" in sys.modules
    try:
        with _without(() if known else _TAKES_OVER):
            loaded = import_module(f"{parent}.{module}")
    except ImportError as error:
        raise KernelUnavailable(
            f"transformers {version('transformers')} cannot be imported: {error}"
        ) from error
    if not known:
        # Whoever imports the file later has it with the packages that are there.
        sys.modules.pop(f"{parent}.{module}", None)
        vars(sys.modules[parent]).pop(module, None)
    return unwrap(getattr(loaded, name))


def _module_of(model: str) -> str:
    return f"transformers.models.{model}.modeling_{model}"


@contextmanager
def _without(packages: tuple[str, ...]) -> Iterator[None]:
    """Within, the packages cannot be imported."""
    before = {name: sys.modules.get(name) for name in packages}
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def unavailable(row: Row) -> str | None:
    """Why the function cannot run here, or None."""
    if find_spec("transformers") is None:
        return f"transformers is not installed; {_INSTALL}"
    if lacking := _lacking():
        return f"transformers needs {lacking}, which is not installed; {_INSTALL}"
    found = _functions(row.model).get(row.function)
    if found is None:
        return f"transformers {_version()} has no {row.function}; {_INSTALL}"
    if missing := sorted(row.needed - _parameters(found)):
        return (
            f"{row.function} of transformers {_version()} does not take "
            f"{', '.join(missing)}; {_INSTALL}"
        )
    return None


@cache
def _lacking() -> str | None:
    """A package that transformers says it needs and that is not here."""
    try:
        needed = requires("transformers") or ()
    except PackageNotFoundError:
        return None
    for requirement in needed:
        name = re.match(r"[\w.-]+", requirement)
        if name is None or ";" in requirement:  # for an extra, or an old Python
            continue
        try:
            version(name[0])
        except PackageNotFoundError:
            return name[0]
    return None


def _parameters(function: ast.FunctionDef) -> frozenset[str]:
    return frozenset(
        one.arg for one in (*function.args.args, *function.args.kwonlyargs)
    )


def contract_of(row: Row) -> Contract:
    """The row's contract, and whether the installed version shares key heads.

    Up to transformers 5.17 models repeat keys before they call the gated delta rule;
    5.24 has that in its functions.
    """
    function = _functions(row.model).get(row.function)
    shares = not row.one_to_one
    if shares and row.op == "gated_delta_rule" and function is not None:
        calls = {x.attr for x in ast.walk(function) if isinstance(x, ast.Attribute)}
        shares = "repeat_interleave" in calls
    return row.contract if shares else replace(row.contract, heads=ONE_TO_ONE)


@cache
def _functions(model: str) -> dict[str, ast.FunctionDef]:
    """Functions of a modelling file, read from its source.

    Importing it loads transformers and torch, which takes seconds.
    """
    spec = find_spec("transformers")
    for folder in (spec and spec.submodule_search_locations) or ():
        source = Path(folder, "models", model, f"modeling_{model}.py")
        if source.is_file():
            return {
                node.name: node
                for node in ast.parse(source.read_text(encoding="utf-8")).body
                if isinstance(node, ast.FunctionDef)
            }
    return {}


def _version() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "of unknown version"


def transformers_kernels() -> tuple[Kernel, ...]:
    """Every row as a kernel."""
    return tuple(
        Kernel(
            name=f"transformers.{row.function}",
            op=row.op,
            call=partial(call, row),
            contract=contract_of(row),
            dtypes=row.dtypes,
            chunk=row.contract.structure.chunk,
            gradients=True,
            supports=row.tensors,
            unavailable=unavailable(row),
            packages=("transformers",),
        )
        for row in ROWS
    )
