"""A user's own tensors from a file, checked, and cut to what a sweep can measure.

A file is safetensors or npz; nothing in it is executed. It holds an op's inputs under
the op's names and in its layout, and switches as metadata (`capture` writes them) or as
a number of that name.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scancheck.case import Case
from scancheck.errors import CaseInvalid, RecordUnreadable
from scancheck.formats import FORMATS, FloatArray, IntArray, round_array
from scancheck.ops import op_named
from scancheck.ops.normal_form import Op, TensorSpec, spec_of
from scancheck.recipes.inputs import Inputs, case_sizes, tensor_format

if TYPE_CHECKING:
    from torch import Tensor

METADATA = "scancheck"  # key of the JSON in a safetensors file's metadata
STEPS_LIMIT = 2**20  # tokens x batch rows x channels x states that a case has at most
MEASURABLE = ("linear_scan", "selective_scan")  # ops that the report knows
LARGEST_FILE = 2**34  # bytes of an npz's arrays, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The inputs of one call, as they are in their file."""

    path: str
    op: str
    form: str | None  # of linear_scan's decays: a or g
    sizes: dict[str, int]  # all of the op's
    tensors: "dict[str, Tensor]"  # in the op's layout, any floating dtype
    switches: dict[str, bool]


def check_measurable(op: str) -> None:
    """Raises CaseInvalid for an op whose own tensors no sweep can measure yet."""
    if op_named(op).name not in MEASURABLE:
        raise CaseInvalid(
            f"op {op}: captured tensors cannot be measured yet; expected one of "
            f"{', '.join(MEASURABLE)}"
        )


@lru_cache(maxsize=1)
def read_captured(path: str, op: str | None = None) -> Captured:
    """The captured tensors of a file; `op` where the file does not say it.

    Raises RecordUnreadable for a file that is missing, damaged or of another kind, and
    CaseInvalid for one without the op's tensors, or with values that are not finite.
    """
    tensors, about = _read(Path(path))
    known = op_named(op or str(about.get("op") or _op_of(path, tensors)))
    check_measurable(known.name)
    tensors, switches = _split(path, known, tensors, about)
    _check_names(path, known, tensors)
    tensors = {s.name: tensors[s.name] for s in known.inputs if s.name in tensors}
    for name, tensor in tensors.items():
        _check_values(path, name, tensor)
    sizes = _sizes(path, known, tensors)
    _check_steps(path, known, tensors, switches)
    form = next((f for f in ("a", "g") if known.forms and f in tensors), None)
    return Captured(
        path=path,
        op=known.name,
        form=form,
        sizes=sizes,
        tensors=tensors,
        switches={name: switches.get(name, False) for name in known.switches},
    )


def _read(path: Path) -> "tuple[dict[str, Tensor], dict[str, object]]":
    """Tensors by name and what the file says about itself."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise RecordUnreadable(f"--inputs {path}: {what}")
    match path.suffix:
        case ".safetensors":
            return _read_safetensors(path)
        case ".npz":
            return _read_npz(path), {}
        case other:
            raise RecordUnreadable(
                f"--inputs {path}: expected a .safetensors or .npz file; "
                f"got {other or 'no ending'!r}"
            )


def _read_safetensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, object]]":
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise RecordUnreadable(
            f"--inputs {path}: not a safetensors file, or damaged ({error})"
        ) from error
    return tensors, about if isinstance(about, dict) else {}


def _read_npz(path: Path) -> "dict[str, Tensor]":
    import torch

    tensors = {}
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > LARGEST_FILE:
            raise RecordUnreadable(
                f"--inputs {path}: unpacks to {unpacked} bytes; expected at most "
                f"{LARGEST_FILE}"
            )
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                array = arrays[name]
                # NumPy gives a member that is no array as its bytes.
                dtype = getattr(array, "dtype", np.dtype("V1"))
                if dtype.kind not in "fiub":
                    raise CaseInvalid(
                        f"--inputs {path}: {name}: expected floating-point numbers; "
                        f"got dtype {dtype} (bf16 needs a safetensors file)"
                    )
                tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise RecordUnreadable(
            f"--inputs {path}: not an npz file of plain arrays, or damaged ({error})"
        ) from error
    return tensors


def _op_of(path: str, tensors: "Mapping[str, Tensor]") -> str:
    """The op whose required inputs the file has."""
    known = {name: op_named(name) for name in MEASURABLE}
    for name, op in known.items():
        required = {spec.name for spec in op.inputs if spec.required}
        if required <= set(tensors) and (
            not op.forms or any(form <= set(tensors) for form in op.forms)
        ):
            return name
    expected = "; ".join(f"{name}: {_input_names(op)}" for name, op in known.items())
    raise CaseInvalid(
        f"--inputs {path}: expected the inputs of an op ({expected}); "
        f"got {', '.join(sorted(tensors)) or 'no tensors'}"
    )


def _input_names(op: Op) -> str:
    needed = [spec.name for spec in op.inputs if spec.required]
    if op.forms:
        needed.insert(0, " or ".join(sorted(next(iter(form)) for form in op.forms)))
    return ", ".join(needed)


def _split(
    path: str,
    op: Op,
    tensors: "Mapping[str, Tensor]",
    about: Mapping[str, object],
) -> "tuple[dict[str, Tensor], dict[str, bool]]":
    """Tensors and switches apart."""
    stored = about.get("switches")
    switches = (
        {str(name): bool(value) for name, value in stored.items()}
        if isinstance(stored, dict)
        else {}
    )
    for name in op.switches:
        if name in tensors:
            if tensors[name].numel() != 1:
                raise CaseInvalid(
                    f"--inputs {path}: {name}: expected one number, 0 or 1; "
                    f"got shape {list(tensors[name].shape)}"
                )
            switches[name] = bool(tensors[name].item())
    rest = {name: value for name, value in tensors.items() if name not in op.switches}
    return rest, switches


def _check_names(path: str, op: Op, tensors: "Mapping[str, Tensor]") -> None:
    """Raises CaseInvalid for inputs that are missing, unknown, or too many."""
    names = set(tensors)
    known = {spec.name for spec in op.inputs}
    if unknown := names - known:
        raise CaseInvalid(
            f"--inputs {path}: {op.name} has no input {', '.join(sorted(unknown))}; "
            f"expected some of {', '.join(spec.name for spec in op.inputs)}"
        )
    lacking = [s.name for s in op.inputs if s.required and s.name not in names]
    if lacking:
        raise CaseInvalid(
            f"--inputs {path}: {op.name} needs {', '.join(lacking)}; "
            f"got {', '.join(sorted(names)) or 'no tensors'}"
        )
    if op.forms and sum(form <= names for form in op.forms) != 1:
        forms = " or ".join(sorted(next(iter(form)) for form in op.forms))
        raise CaseInvalid(
            f"--inputs {path}: {op.name} needs exactly one of {forms}; "
            f"got {', '.join(sorted(names))}"
        )


def _check_values(path: str, name: str, tensor: "Tensor") -> None:
    """Raises CaseInvalid unless the tensor holds finite floating-point numbers."""
    import torch

    if not tensor.dtype.is_floating_point:
        raise CaseInvalid(
            f"--inputs {path}: {name}: expected floating-point numbers; got dtype "
            f"{str(tensor.dtype).removeprefix('torch.')}"
        )
    finite = torch.isfinite(tensor.float())
    if not bool(finite.all()):
        index = tuple((~finite).nonzero()[0].tolist())
        raise CaseInvalid(
            f"--inputs {path}: {name}: expected finite numbers; "
            f"got {float(tensor[index])} at {index}, {int((~finite).sum())} in all"
        )


def _sizes(path: str, op: Op, tensors: "Mapping[str, Tensor]") -> dict[str, int]:
    """All sizes of the op; raises CaseInvalid for shapes that do not fit together."""
    sizes: dict[str, int] = {}
    told: dict[str, str] = {}
    for name, tensor in tensors.items():
        axes = _spec(path, op, name, tensor).axes
        for axis, size in zip(axes, tensor.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise CaseInvalid(
                    f"--inputs {path}: {name}: expected [{', '.join(axes)}] with "
                    f"{axis} = {sizes[axis]} as {told[axis]} has; "
                    f"got shape {list(tensor.shape)}"
                )
            told.setdefault(axis, name)
            if size < 1:
                raise CaseInvalid(
                    f"--inputs {path}: {name}: expected at least one element; "
                    f"got shape {list(tensor.shape)}"
                )
    if "G" in op.size_names and sizes["D"] % sizes.setdefault("G", 1):
        raise CaseInvalid(
            f"--inputs {path}: expected groups that divide D = {sizes['D']}; "
            f"got {sizes['G']}"
        )
    return sizes


def _spec(path: str, op: Op, name: str, tensor: "Tensor") -> TensorSpec:
    try:
        return spec_of(op, name, tensor.dim())
    except CaseInvalid as error:
        spec = spec_of(op, name)
        raise CaseInvalid(
            f"--inputs {path}: {name}: expected [{', '.join(spec.axes)}]; "
            f"got shape {list(tensor.shape)}"
        ) from error


def _check_steps(
    path: str, op: Op, tensors: "Mapping[str, Tensor]", switches: Mapping[str, bool]
) -> None:
    """Raises CaseInvalid where only softplus can make sense of delta, and is not said.

    A negative step turns decays into growth; no model means that.
    """
    if "delta_softplus" not in op.switches or "delta_softplus" in switches:
        return
    step = tensors["delta"].double()
    if "delta_bias" in tensors:
        step = step + tensors["delta_bias"].double()[None, :, None]
    if float(step.min()) < 0.0:
        raise CaseInvalid(
            f"--inputs {path}: delta: expected positive steps; got "
            f"{float(step.min()):.3g}. If the op applies softplus to them, store "
            "delta_softplus = 1 beside the tensors"
        )


def measured_sizes(captured: Captured) -> dict[str, int]:
    """The sizes of the part that a sweep measures: fewer batch rows and channels."""
    op = op_named(captured.op)
    sizes = dict(captured.sizes)
    groups = sizes.get("G", 1)
    chain = sizes[op.time_axis] * sizes.get("N", 1)
    chains = max(1, STEPS_LIMIT // chain)
    sizes["D"] = min(sizes["D"], max(1, chains // groups) * groups)
    sizes["B"] = min(sizes["B"], max(1, chains // sizes["D"]))
    return sizes


def captured_inputs(path: str, case: Case) -> Inputs:
    """The tensors of a file, cut to the case's sizes and rounded into its formats.

    Batch rows and channels are evenly spaced over those of the file.
    """
    captured = read_captured(path, case.op)
    op = op_named(case.op)
    sizes = case_sizes(case)
    rows = _spaced(captured.sizes["B"], sizes["B"])
    groups = sizes.get("G", 1)
    each = _spaced(captured.sizes["D"] // groups, sizes["D"] // groups)
    starts = np.arange(groups) * (captured.sizes["D"] // groups)
    chosen = {"B": rows, "D": (starts[:, None] + each).ravel()}
    tensors = {}
    for spec in op.inputs:
        if spec.name in captured.tensors:
            tensor = captured.tensors[spec.name]
            found = spec_of(op, spec.name, tensor.dim())
            values = _taken(tensor, found.axes, chosen)
            tensors[spec.name] = round_array(tensor_format(case, found), values)
    return Inputs(tensors=tensors, switches=captured.switches)


def _spaced(size: int, count: int) -> IntArray:
    """`count` of `size` indices, evenly spaced."""
    return np.arange(count, dtype=np.int64) * size // count


def _taken(
    tensor: "Tensor", axes: tuple[str, ...], chosen: Mapping[str, IntArray]
) -> FloatArray:
    import torch

    for number, axis in enumerate(axes):
        if axis in chosen:
            tensor = tensor.index_select(number, torch.from_numpy(chosen[axis]))
    return np.asarray(tensor.detach().double().numpy(), dtype=np.float64)


def storages_that_hold(captured: Captured) -> tuple[str, ...]:
    """The formats whose largest value is at least that of every captured tensor."""
    op = op_named(captured.op)
    largest = max(
        float(tensor.abs().max())
        for name, tensor in captured.tensors.items()
        if spec_of(op, name, tensor.dim()).kind == "storage"
    )
    return tuple(name for name, fmt in FORMATS.items() if largest <= fmt.largest)


def in_words(captured: Captured) -> str:
    """File, op, sizes and formats, and what part of it a sweep measures."""
    dtypes = sorted(
        {str(t.dtype).removeprefix("torch.") for t in captured.tensors.values()}
    )
    sizes = ", ".join(f"{name} = {size}" for name, size in captured.sizes.items())
    name = Path(captured.path).name
    told = f"{name}: {captured.op}, {sizes}, {' and '.join(dtypes)}"
    measured = measured_sizes(captured)
    if prod(measured.values()) < prod(captured.sizes.values()):
        told += (
            f"; measured on {measured['B']} of {captured.sizes['B']} batch rows and "
            f"{measured['D']} of {captured.sizes['D']} channels, evenly spaced"
        )
    return told
