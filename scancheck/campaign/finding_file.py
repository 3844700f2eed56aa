"""A finding as one file that says everything needed to run it again.

safetensors: the tensors as run, in their own formats, and in the header one JSON text.
Nothing in a file is executed, and no more of it is read than MOST_BYTES.
"""

import json
import math
import os
import struct
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from scancheck import __version__
from scancheck.bridge import from_torch, to_torch
from scancheck.case import Case, case_from_json, case_to_json
from scancheck.contract import Contract, format_contract, parse_contract
from scancheck.diagnosis import CAUSES
from scancheck.errors import CaseInvalid, RecordUnreadable
from scancheck.formats import FORMATS, FloatArray
from scancheck.ops import OPS, op_named
from scancheck.ops.calling import calling_of, op_of
from scancheck.ops.normal_form import Op, spec_of
from scancheck.recipes.catalog import profile_of
from scancheck.recipes.inputs import COTANGENT_KINDS, Inputs, axis_sizes
from scancheck.record import Finding, to_plain
from scancheck.verdict import Verdict

SUFFIX = ".safetensors"
KEY = "scancheck_finding"  # in the header's metadata
SCHEMA = 1
INPUT, COTANGENT = "input.", "cotangent."
MOST_BYTES = 2**28  # of a file
MOST_HEADER_BYTES = 2**20
LENGTH = struct.Struct("<Q")  # of the header, at the start of the file
TEXTS = ("target", "contract", "scancheck")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFinding:
    """What a finding's file holds."""

    target: str  # the kernel as it was named
    contract: Contract
    gradients: bool
    case: Case  # sizes are those of the tensors; the recipe may be "shrunk"
    cotangent_kind: str | None
    inputs: Inputs
    cotangents: dict[str, FloatArray] | None
    finding: Finding
    key: str  # findings with the same key have the same cause
    campaign: dict[str, Any]  # seed, profile, device and the case as it was drawn
    environment: dict[str, str]
    scancheck: str = __version__


def write_finding(stored: StoredFinding, path: Path) -> None:
    """Writes the finding so that the file is whole or not there at all.

    Raises OSError where it cannot be written, ValueError where it is too large.
    """
    from safetensors.torch import save

    op = op_of(stored.case)
    tensors = {}
    for prefix, arrays in (
        (INPUT, stored.inputs.tensors),
        (COTANGENT, stored.cotangents or {}),
    ):
        for name, values in arrays.items():
            dtype = _dtype(op, stored.case, name, values.ndim)
            tensors[prefix + name] = to_torch(values, dtype)
    content = save(tensors, {KEY: json.dumps(_to_json(stored), allow_nan=False)})
    (header,) = LENGTH.unpack_from(content)
    if len(content) > MOST_BYTES or header > MOST_HEADER_BYTES:
        raise ValueError(f"{path.name}: {len(content)} bytes are more than a finding's")
    handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.chmod(part, 0o644)
        os.replace(part, path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def read_finding(path: Path) -> StoredFinding:
    """The finding in a file; raises RecordUnreadable with the reason otherwise."""
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise _Unreadable("is no file")
        if size > MOST_BYTES:
            raise _Unreadable(f"{size} bytes, expected at most {MOST_BYTES}")
        with path.open("rb") as stream:
            data = _metadata(stream.read(LENGTH.size), stream, size)
            stream.seek(0)
            content = stream.read(MOST_BYTES + 1)
        return _stored(data, _tensors(content))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    except (_Unreadable, CaseInvalid) as error:
        reason = str(error)
    raise RecordUnreadable(f"{path}: no finding of scancheck can be read: {reason}")


class _Unreadable(Exception):
    """Why a file is no finding, in a few words."""


def _metadata(start: bytes, stream: Any, size: int) -> dict[str, Any]:
    """The finding's JSON, read before any tensor."""
    if len(start) < LENGTH.size:
        raise _Unreadable("it is empty or cut off")
    (length,) = LENGTH.unpack(start)
    if length > MOST_HEADER_BYTES or LENGTH.size + length > size:
        raise _Unreadable(
            f"its header claims {length} bytes in a file of {size}; it is cut off, too "
            "large or of another kind"
        )
    header = _parsed(stream.read(length), "header")
    metadata = header.get("__metadata__")
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise _Unreadable(f"its header has no {KEY}")
    return _parsed(text, KEY)


def _parsed(text: str | bytes, what: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"its {what} is no JSON ({error})"[:200]) from None
    if not isinstance(data, dict):
        raise _Unreadable(f"its {what} is no JSON object")
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _tensors(content: bytes) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise _Unreadable(f"its tensors cannot be read ({error})"[:200]) from None


def _to_json(stored: StoredFinding) -> dict[str, Any]:
    data = {
        "schema": SCHEMA,
        "scancheck": stored.scancheck,
        "target": stored.target,
        "op": stored.case.op,
        "dtype": stored.case.dtype,
        "contract": format_contract(stored.contract),
        "gradients": stored.gradients,
        "case": case_to_json(stored.case),
        "cotangent_kind": stored.cotangent_kind,
        "switches": stored.inputs.switches,
        "verdict": stored.finding.verdict,
        "cause": stored.finding.cause,
        "key": stored.key,
        "finding": asdict(stored.finding),
        "campaign": stored.campaign,
        "environment": stored.environment,
    }
    return dict(to_plain(data))


def _stored(data: dict[str, Any], tensors: dict[str, Any]) -> StoredFinding:
    """The finding, every field of which is of the kind that was written."""
    if data.get("schema") != SCHEMA:
        raise _Unreadable(f"expected schema {SCHEMA}; got {data.get('schema')!r}"[:120])
    for name in TEXTS:
        if not isinstance(data.get(name), str):
            raise _Unreadable(f"expected a text as {name}")
    case = _case(data.get("case"))
    op = op_of(case)
    switches = data.get("switches")
    kind = data.get("cotangent_kind")
    if kind is not None and kind not in COTANGENT_KINDS:
        raise _Unreadable("its cotangent_kind is unknown")
    if not isinstance(switches, dict) or not all(
        name in op.switches and isinstance(on, bool) for name, on in switches.items()
    ):
        raise _Unreadable(f"expected switches of {op.name}, true or false")
    arrays = {name: _values(op, case, name, t) for name, t in tensors.items()}
    inputs = _with_prefix(INPUT, arrays, {s.name for s in op.inputs})
    bars = _with_prefix(COTANGENT, arrays, {s.name for s in op.outputs})
    if len(inputs) + len(bars) != len(arrays):
        raise _Unreadable(f"it has tensors that {op.name} does not have")
    _check_inputs(op, inputs)
    campaign, environment = data.get("campaign"), data.get("environment")
    finding = _finding(data.get("finding"), case)
    drawn = campaign.get("drawn") if isinstance(campaign, dict) else None
    recipe = drawn.get("recipe") if isinstance(drawn, dict) else case.recipe
    return StoredFinding(
        target=data["target"],
        contract=parse_contract(data["contract"]),
        gradients=data.get("gradients") is True,
        case=case,
        cotangent_kind=kind,
        inputs=Inputs(
            tensors={s.name: inputs[s.name] for s in op.inputs if s.name in inputs},
            switches={name: switches.get(name, False) for name in op.switches},
        ),
        cotangents=bars if kind is not None else None,
        finding=replace(finding, profile=profile_of(recipe)),
        key=str(data.get("key")),
        campaign=campaign if isinstance(campaign, dict) else {},
        environment=environment if isinstance(environment, dict) else {},
        scancheck=data["scancheck"],
    )


def _case(data: Any) -> Case:
    """The case; its sizes and options are small numbers and short texts."""
    if not isinstance(data, dict) or data.get("op") not in OPS:
        raise _Unreadable(f"expected a case of {', '.join(OPS)}")
    sizes, options = data.get("sizes"), data.get("options")
    names = op_named(data["op"]).size_names
    if (
        data.get("dtype") not in FORMATS
        or not isinstance(sizes, dict)
        or not set(sizes) <= set(names)
        or not set(names) - {"G"} <= set(sizes)
        or not all(_is_integer(n) and 0 <= n < 2**32 for n in sizes.values())
        or not isinstance(options, dict)
        or not all(_is_option(value) for value in options.values())
        or not isinstance(data.get("recipe"), str)
        or not _is_integer(data.get("seed"))
    ):
        raise _Unreadable("its case is not one that scancheck writes")
    case = case_from_json(data)
    calling = calling_of(dict(case.options))
    if calling is not None:
        calling.check(sizes["B"], sizes[op_named(case.op).time_axis])
    return case


def _is_option(value: Any) -> bool:
    """A short text, a number, or the offsets or lengths of sequences."""
    if isinstance(value, list):
        return all(_is_integer(n) and 0 <= n < 2**32 for n in value)
    return isinstance(value, str | int)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _values(op: Op, case: Case, name: str, tensor: Any) -> FloatArray:
    """A tensor's values, of the shape and dtype that the case gives it."""
    _, _, plain = name.partition(".")
    sizes = axis_sizes(case)
    spec = spec_of(op, plain, tensor.ndim)
    shape = tuple(sizes[axis] for axis in spec.axes)
    if tuple(tensor.shape) != shape:
        raise _Unreadable(
            f"{name}: expected shape {list(shape)}; got {list(tensor.shape)}"
        )
    wanted = _dtype(op, case, plain, tensor.ndim)
    if str(tensor.dtype) != f"torch.{FORMATS[wanted].torch_name}":
        raise _Unreadable(f"{name}: expected {wanted}; got {tensor.dtype}")
    values = from_torch(tensor)
    if not math.isfinite(float(abs(values).sum())) and (values != values).any():
        raise _Unreadable(f"{name} holds NaN, which no case does")
    return values


def _dtype(op: Op, case: Case, name: str, rank: int) -> str:
    """The name of the format in which a tensor of a case is stored."""
    if spec_of(op, name, rank).kind == "storage":
        return case.dtype
    return "fp64" if case.dtype == "fp64" else "fp32"


def _with_prefix(
    prefix: str, arrays: dict[str, FloatArray], known: set[str]
) -> dict[str, FloatArray]:
    return {name: arrays[prefix + name] for name in known if prefix + name in arrays}


def _check_inputs(op: Op, inputs: dict[str, FloatArray]) -> None:
    lacking = [s.name for s in op.inputs if s.required and s.name not in inputs]
    if lacking:
        raise _Unreadable(f"the tensor {INPUT}{lacking[0]} is missing")
    given = [form for form in op.forms if form & set(inputs)]
    if op.forms and (len(given) != 1 or not given[0] <= set(inputs)):
        raise _Unreadable(f"expected one form of {op.name}, whole")


def _finding(data: Any, case: Case) -> Finding:
    """The finding as it was told; what is missing or odd is left out."""
    if not isinstance(data, dict):
        raise _Unreadable("expected a finding")
    for name in ("check", "verdict", "cause", "reason", "advice"):
        if not isinstance(data.get(name), str):
            raise _Unreadable(f"expected a text as {name} of the finding")
    if data["verdict"] not in list(Verdict) or data["cause"] not in CAUSES:
        raise _Unreadable("the verdict or the cause of the finding is unknown")
    known = {f.name for f in fields(Finding)}
    kept = {name: value for name, value in data.items() if name in known}
    index = kept.get("first_wrong_index")
    values = kept.get("values")
    defaults = dict.fromkeys(("tensor", "ratio", "rho", "place", "file"), None) | {
        "replay": ""
    }
    return Finding(
        **{
            **defaults,
            **kept,
            "case": case_to_json(case),
            "case_id": case.id,
            "first_wrong_index": tuple(index) if isinstance(index, list) else None,
            "values": tuple(map(str, values)) if isinstance(values, list) else (),
        }
    )
