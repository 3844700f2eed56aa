"""How a kernel says it rounds, as data, and how users write it down.

Fields and values follow numerics 2.1: each maps to a coefficient of a bound.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from scancheck.errors import CaseInvalid
from scancheck.formats import FORMATS, TF32, Format

CONTRACT_FORMATS = {**FORMATS, TF32.name: TF32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """In which order a kernel combines its steps."""

    kind: str = "unknown"  # unknown, sequential, tree, chunk
    chunk: int | None = None  # tokens per chunk, for kind chunk
    inner: str = "sequential"  # order inside a chunk: sequential or tree
    carry: str = "sequential"  # order between chunks: sequential or tree
    # Exactly which order, where a sharper bound is claimed (bounds.tree_emulation):
    # any; stepwise, affine maps combined one after another; or hillis_steele.
    order: str = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorModel:
    """Relative error e0 + e1 |x| of a function, in unit roundoffs of `compute`."""

    e0: float
    e1: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The rounding behaviour a kernel claims; the defaults are any tree in fp32.

    Raises CaseInvalid when two fields contradict each other.
    """

    compute: str = "fp32"  # format of every operation, or "storage": the case's dtype
    state: str = "compute"  # format the state is kept in: compute, storage or a name
    state_every: int = 1  # the state is rounded to `state` every so many steps
    structure: Structure = Structure()  # order of combination
    fma: str = "allowed"  # allowed, yes, no
    # none, diff, segsum, factored, ratio, full, renorm; gradients of full may be an
    # explicit adjoint's or those of automatic differentiation (log_reverse_mode).
    log: str = "none"
    # Decays that are an op's constants: rounded once, or exp of their rounded logs.
    constant_decay: str = "rounded"
    gate_gradient: str = "direct"  # of log gates: direct (w_t G_t S_{t-1}) or
    # reverse_cumsum (sums of r obar S - G x over all later steps), chunk_sums (those of
    # a chunk as its whole sum less a running one)
    comp: str = "none"  # none, kahan (addition only), full (product and addition)
    # Format in which each value head has its gradient of a key head's q and k, where
    # several share that one: compute or storage.
    gradient_parts: str = "compute"
    # Format in which a backward pass finds the states, which it has not computed anew:
    # compute, or storage where it reads them as the forward pass has returned them.
    gradient_state: str = "compute"
    # A backward pass may be plain where the forward pass keeps rests, and then has each
    # decay as one rounded number: `gradient_exp`, or None for `exp`. Both are of all
    # that gradients are made of, the states that the forward pass hands on included.
    gradient_comp: str = "same"  # same as comp, none
    exp: ErrorModel = ErrorModel(e0=4.0, e1=2.35)  # CUDA's fast exp, numerics 2.1
    gradient_exp: ErrorModel | None = None
    # ln x and ln(1 + x) are off by e0 |ln x| + e1: CUDA's fast logarithm, 3 ulps of the
    # result or 2^-21.41 near 1, and one rounding of 1 + x.
    ln: ErrorModel = ErrorModel(e0=6.0, e1=7.1)
    # Far below zero softplus(x) is exp(x) and silu(x) is x exp(x), so that a kernel
    # which may use the fast exp has its error there too.
    softplus: ErrorModel = ErrorModel(e0=4.0, e1=2.35)
    silu: ErrorModel = ErrorModel(e0=4.0, e1=2.35)
    ftz: str = "either"  # subnormal results: either (the larger term), yes, no
    casts: tuple[tuple[str, str], ...] = ()  # (cast point, format): decay, drive
    # Of matrix products (numerics 2.7): the format their operands are rounded to, or
    # "storage"; how sums of them are rounded, nearest or truncate (tensor cores).
    operands: str = "compute"
    accumulate: str = "nearest"
    # How chunks of a delta rule invert their triangular matrix (numerics 2.10):
    # substitution, block or neumann.
    inverse: str = "substitution"
    range: str = "products"  # what must stay in range: products, sequential, log
    domain: tuple[tuple[str, float, float], ...] = ()  # (input, lowest, highest)
    # Key heads: shared by several value heads each, or one_to_one, which is all that
    # some kernels take.
    heads: str = "shared"
    # Sizes that are multiples of something: (size name, of what), as blocks want them.
    widths: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        _check_values(self)
        _check_contradictions(self)


CHOICES = {
    "fma": ("allowed", "yes", "no"),
    "log": ("none", "diff", "segsum", "factored", "ratio", "full", "renorm"),
    "constant_decay": ("rounded", "exp"),
    "gate_gradient": ("direct", "reverse_cumsum", "chunk_sums"),
    "comp": ("none", "kahan", "full"),
    "gradient_comp": ("same", "none"),
    "gradient_parts": ("compute", "storage"),
    "gradient_state": ("compute", "storage"),
    "ftz": ("either", "yes", "no"),
    "accumulate": ("nearest", "truncate"),
    "inverse": ("substitution", "block", "neumann"),
    "range": ("products", "sequential", "log"),
    "heads": ("shared", "one_to_one"),
}
ORDERS = ("sequential", "tree")
NAMED_ORDERS = ("any", "stepwise", "hillis_steele")
KINDS = ("unknown", "sequential", "tree", "chunk")
CAST_POINTS = ("decay", "drive")
ERROR_MODELS = ("exp", "gradient_exp", "ln", "softplus", "silu")
DEFAULT = "default"  # the contract without any key, in text


def _check_values(contract: Contract) -> None:
    """Raises CaseInvalid for a value outside its field's list."""
    for name, choices in CHOICES.items():
        value = getattr(contract, name)
        if value not in choices:
            raise CaseInvalid(
                f"contract {name}: expected one of {', '.join(choices)}; got {value!r}"
            )
    known = sorted(CONTRACT_FORMATS)
    for name, extra in (
        ("compute", ["storage"]),
        ("state", ["compute", "storage"]),
        ("operands", ["compute", "storage"]),
    ):
        value = getattr(contract, name)
        if value not in known + extra:
            raise CaseInvalid(
                f"contract {name}: expected one of {', '.join(extra + known)}; "
                f"got {value!r}"
            )
    for point, name in contract.casts:
        if point not in CAST_POINTS or name not in known:
            raise CaseInvalid(
                f"contract casts: expected POINT:FORMAT with POINT in "
                f"{', '.join(CAST_POINTS)} and FORMAT in {', '.join(known)}; "
                f"got {point}:{name}"
            )
    for name, lowest, highest in contract.domain:
        if not lowest <= highest:
            raise CaseInvalid(
                "contract domain: expected INPUT:LOWEST:HIGHEST with LOWEST at most "
                f"HIGHEST; got {name}:{lowest:g}:{highest:g}"
            )
    for name, multiple in contract.widths:
        if multiple < 1:
            raise CaseInvalid(
                "contract widths: expected SIZE:MULTIPLE with a multiple of at least "
                f"1; got {name}:{multiple}"
            )
    rows_of: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = (
        ("casts", contract.casts),
        ("domain", contract.domain),
        ("widths", contract.widths),
    )
    for key, rows in rows_of:
        names = [row[0] for row in rows]
        if twice := [name for name in names if names.count(name) > 1]:
            raise CaseInvalid(f"contract {key}: {twice[0]} is given twice")
    if contract.state_every < 1:
        raise CaseInvalid(
            f"contract state_every: expected at least 1; got {contract.state_every}"
        )
    for name in ERROR_MODELS:
        model = getattr(contract, name)
        if model is not None and not (0 <= model.e0 < 1e6 and 0 <= model.e1 < 1e6):
            raise CaseInvalid(
                f"contract {name}: expected error coefficients in 0 .. 1e6 unit "
                f"roundoffs; got {model.e0}, {model.e1}"
            )
    _check_structure(contract.structure)


def _check_structure(structure: Structure) -> None:
    if structure.kind not in KINDS:
        raise CaseInvalid(
            f"contract structure: expected one of {', '.join(KINDS)}; "
            f"got {structure.kind!r}"
        )
    if (structure.kind == "chunk") != (structure.chunk is not None):
        raise CaseInvalid(
            "contract structure: a chunk size belongs to chunk(C, inner, carry) and "
            f"to nothing else; got {structure.kind} with chunk size {structure.chunk}"
        )
    if structure.chunk is not None and structure.chunk < 1:
        raise CaseInvalid(
            f"contract structure: expected a chunk size of at least 1; "
            f"got {structure.chunk}"
        )
    for side in (structure.inner, structure.carry):
        if side not in ORDERS:
            raise CaseInvalid(
                f"contract structure: expected sequential or tree inside chunk(...); "
                f"got {side!r}"
            )
    _check_order(structure)


def _check_order(structure: Structure) -> None:
    """Raises CaseInvalid for an unknown order, and for one of another structure."""
    order, inner = structure.order, structure.inner
    if order not in NAMED_ORDERS:
        raise CaseInvalid(
            f"contract structure: expected an order of {', '.join(NAMED_ORDERS)} in "
            f"{structure.kind}(...); got {order!r}"
        )
    fits = {
        "any": True,
        "stepwise": structure.kind == "chunk" and inner == "sequential",
        "hillis_steele": structure.kind == "tree"
        or (structure.kind == "chunk" and inner == "tree"),
    }
    if not fits[order] or (order != "any" and structure.carry != "sequential"):
        raise CaseInvalid(
            "contract structure: expected tree(hillis_steele), "
            "chunk(C,sequential,sequential,stepwise) or "
            "chunk(C,tree,sequential,hillis_steele) where an order is named; "
            f"got {_format_value(structure)}"
        )


def _check_contradictions(contract: Contract) -> None:
    """Raises CaseInvalid that names both sides of a contradiction."""
    kind = contract.structure.kind
    clashes = (
        (
            contract.comp == "full" and kind == "unknown",
            "comp=full (which needs a declared order)",
            "structure=unknown",
        ),
        (
            contract.comp != "none" and contract.log != "none",
            f"comp={contract.comp}",
            f"log={contract.log}",
        ),
        (contract.range == "log" and contract.log == "none", "range=log", "log=none"),
        (
            contract.range == "sequential" and kind in ("tree", "chunk"),
            "range=sequential",
            f"structure={kind}",
        ),
        (
            contract.gate_gradient == "chunk_sums" and kind != "chunk",
            "gate_gradient=chunk_sums",
            f"structure={kind}",
        ),
        (
            contract.state_every > 1 and contract.state == "compute",
            f"state_every={contract.state_every}",
            "state=compute (nothing is rounded)",
        ),
    )
    for holds, left, right in clashes:
        if holds:
            raise CaseInvalid(
                f"contract contradicts itself: {left} against {right}; "
                "change one of the two"
            )


def resolve(contract: Contract, dtype: str) -> Contract:
    """The contract with "storage" and "compute" replaced by the names of formats."""
    compute = dtype if contract.compute == "storage" else contract.compute
    # An fp64 case is computed in fp64 unless the contract says otherwise.
    if dtype == "fp64" and contract.compute == Contract().compute:
        compute = "fp64"
    names = {"compute": compute, "storage": dtype}
    return replace(
        contract,
        compute=compute,
        state=names.get(contract.state, contract.state),
        operands=names.get(contract.operands, contract.operands),
    )


def formats_used(contract: Contract, dtype: str) -> tuple[Format, ...]:
    """The formats in which values of a case are held between its loads and stores."""
    resolved = resolve(contract, dtype)
    names = {resolved.compute, resolved.state, resolved.operands}
    names |= {fmt for _, fmt in contract.casts}
    return tuple(CONTRACT_FORMATS[name] for name in sorted(names))


def of_gradients(contract: Contract) -> Contract:
    """What a contract says of gradients, as a contract that says it of everything."""
    return replace(
        contract,
        comp=contract.comp if contract.gradient_comp == "same" else "none",
        gradient_comp="same",
        exp=contract.gradient_exp or contract.exp,
        gradient_exp=None,
    )


def parse_contract(text: str) -> Contract:
    """The contract written as `key=value,...`, `default`, or in a TOML file.

    Raises CaseInvalid for an unknown key, a value that does not parse, a file that
    is not TOML, or a contradiction.
    """
    if text.endswith(".toml"):
        return _from_mapping(_read_toml(Path(text)))
    if text.strip() == DEFAULT:
        return Contract()
    pairs = {}
    for item in re.split(r",(?![^()]*\))", text):
        if not item.strip():
            continue
        key, separator, value = item.partition("=")
        if not separator:
            raise CaseInvalid(
                f"--contract: expected key=value,...; got {item.strip()!r}"
            )
        if key.strip() in pairs:
            raise CaseInvalid(f"--contract: {key.strip()} is given twice")
        pairs[key.strip()] = value.strip()
    return _from_mapping(pairs)


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseInvalid(f"--contract {path}: cannot be read ({error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CaseInvalid(f"--contract {path}: not TOML ({error})") from error


def _from_mapping(pairs: Mapping[str, Any]) -> Contract:
    known = [f.name for f in fields(Contract)]
    values: dict[str, Any] = {}
    for key, value in pairs.items():
        if key not in known:
            raise CaseInvalid(
                f"contract key {key!r} is unknown; expected one of {', '.join(known)}"
            )
        values[key] = _parse_value(key, value)
    return Contract(**values)


def _parse_value(key: str, value: Any) -> Any:
    """One field from its text; numbers may be given as in exp=4+2.35x."""
    text = str(value).replace(" ", "")
    try:
        if key == "structure":
            return parse_structure(text)
        if key == "state_every":
            return int(text)
        if key in ERROR_MODELS:
            e0, _, e1 = text.removesuffix("x").partition("+")
            return ErrorModel(e0=float(e0), e1=float(e1 or 0.0))
        if key == "casts":
            points = [p for p in re.split(r"[+;]", text) if p]
            return tuple((p.partition(":")[0], p.partition(":")[2]) for p in points)
        if key == "widths":
            sizes = [row.split(":") for row in re.split(r"[+;]", text) if row]
            return tuple((name, int(multiple)) for name, multiple in sizes)
        if key == "domain":
            rows = [row for row in re.split(r"[+;]", text) if row]
            return tuple(_domain_row(row) for row in rows)
    except ValueError as error:
        raise CaseInvalid(
            f"contract {key}: cannot read {value!r} ({error}); examples: "
            "structure=chunk(64,tree,sequential), state_every=64, exp=4+2.35x, "
            "casts=decay:bf16+drive:bf16, domain=g:-5:0, widths=K:16+V:16"
        ) from error
    return text


def _domain_row(row: str) -> tuple[str, float, float]:
    name, lowest, highest = row.split(":")
    return name, float(lowest), float(highest)


def parse_structure(text: str) -> Structure:
    """The structure written as `sequential` or `chunk(C, inner, carry, order)`."""
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", text)
    if match is None:
        raise ValueError("expected NAME, tree(order) or chunk(C, inner, carry, order)")
    kind, inside = match.group(1), match.group(2)
    parts = [part.strip() for part in inside.split(",")] if inside else []
    if kind == "tree" and len(parts) == 1:
        return Structure(kind=kind, order=parts[0])
    if len(parts) > 4:
        raise ValueError(
            "expected at most four arguments in chunk(C, inner, carry, order)"
        )
    chunk = int(parts[0]) if parts else None
    rest = dict(zip(("inner", "carry", "order"), parts[1:], strict=False))
    return Structure(kind=kind, chunk=chunk, **rest)


def format_contract(contract: Contract) -> str:
    """The contract as `parse_contract` reads it, without the fields at default."""
    default = Contract()
    parts = []
    for f in fields(Contract):
        value = getattr(contract, f.name)
        if value != getattr(default, f.name):
            parts.append(f"{f.name}={_format_value(value)}")
    return ",".join(parts) or DEFAULT


def _format_value(value: Any) -> str:
    match value:
        case Structure(kind="chunk"):
            order = "" if value.order == "any" else f",{value.order}"
            return f"chunk({value.chunk},{value.inner},{value.carry}{order})"
        case Structure():
            order = "" if value.order == "any" else f"({value.order})"
            return f"{value.kind}{order}"
        case ErrorModel():
            return f"{_format_value(value.e0)}+{_format_value(value.e1)}x"
        case tuple():
            return "+".join(":".join(map(_format_value, row)) for row in value)
        case float():
            # A plus sign would separate two rows.
            return repr(value).removesuffix(".0").replace("e+", "e")
        case _:
            return str(value)
