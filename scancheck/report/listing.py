"""What there is, as tables: kernels, ops, recipes, formats, contract keys, adapters."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version

from rich.markup import escape
from rich.table import Table

from scancheck.contract import CHOICES, CONTRACT_FORMATS, Contract, format_contract
from scancheck.formats import FORMATS
from scancheck.kernel import Kernel
from scancheck.ops import op_named
from scancheck.ops.normal_form import TensorSpec
from scancheck.recipes.catalog import RECIPES, ops_with_recipes

_VALUES = {
    **{key: ", ".join(choices) for key, choices in CHOICES.items()},
    "compute": f"{', '.join(CONTRACT_FORMATS)}, storage",
    "state": f"compute, storage, {', '.join(CONTRACT_FORMATS)}",
    "state_every": "number of steps between roundings of the state",
    "structure": "unknown, sequential, tree(order), chunk(C, inner, carry, order); "
    "orders: any, stepwise, hillis_steele",
    "exp": "e0+e1x: relative error e0 + e1 |x| in unit roundoffs",
    "gradient_exp": "as exp, of the backward pass's decays",
    "ln": "as exp, of ln x: e0 |ln x| + e1 unit roundoffs",
    "softplus": "as exp",
    "silu": "as exp",
    "casts": "POINT:FORMAT between plus signs; points: decay, drive",
    "operands": f"compute, storage, {', '.join(CONTRACT_FORMATS)}",
    "domain": "INPUT:LOWEST:HIGHEST between plus signs",
    "widths": "SIZE:MULTIPLE between plus signs",
}
# What tells one built-in kernel from another.
ALGORITHM_KEYS = (
    "compute",
    "state",
    "state_every",
    "structure",
    "log",
    "constant_decay",
    "comp",
    "operands",
    "accumulate",
    "inverse",
)


def tables(
    names: Sequence[str], kernels: Sequence[Kernel], adapters: Sequence[Kernel]
) -> Iterator[Table]:
    """One table for each name; `adapters` are left out of the kernels."""
    for name in names:
        match name:
            case "kernels":
                known = {kernel.name for kernel in adapters}
                yield _kernels([k for k in kernels if k.name not in known])
            case "ops":
                yield _ops()
            case "recipes":
                yield _recipes()
            case "formats":
                yield _formats()
            case "contracts":
                yield _contracts()
            case "adapters":
                yield _adapters(adapters)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    return table


def _kernels(kernels: Iterable[Kernel]) -> Table:
    table = _table("kernels", "name", "op", "dtypes", "gradients", "contract or fault")
    for kernel in kernels:
        told = kernel.unavailable or kernel.hazard or _algorithm(kernel.contract)
        table.add_row(kernel.name, kernel.op, *_traits(kernel), escape(told))
    return table


def _algorithm(contract: Contract | None) -> str:
    """The contract without its error models, which a run's record gives in full."""
    if contract is None:
        return "none declared"
    told = {key: getattr(contract, key) for key in ALGORITHM_KEYS}
    return format_contract(Contract(**told))


def _adapters(adapters: Iterable[Kernel]) -> Table:
    traits = ("installed", "here", "device", "dtypes", "gradients")
    columns = ("name", "op", *traits, "note")
    table = _table("adapters", *columns)
    for kernel in adapters:
        here = "no" if kernel.unavailable else "yes"
        note = kernel.unavailable or kernel.note or ""
        device = kernel.devices[0].upper()
        installed = _installed(kernel.packages)
        row = (kernel.name, kernel.op, installed, here, device, *_traits(kernel))
        table.add_row(*row, escape(note))
    return table


def _installed(packages: Iterable[str]) -> str:
    """The first of the packages that is installed, with its version."""
    for package in packages:
        with suppress(PackageNotFoundError):
            return f"{package} {version(package)}"
    return "no"


def _traits(kernel: Kernel) -> tuple[str, str]:
    return ", ".join(kernel.dtypes), "yes" if kernel.gradients else "no"


def _ops() -> Table:
    table = _table("ops", "name", "inputs", "switches", "outputs")
    for op in map(op_named, ops_with_recipes()):
        table.add_row(
            op.name,
            " ".join(_tensor(spec) for spec in op.inputs),
            " ".join(op.switches),
            " ".join(_tensor(spec) for spec in op.outputs),
        )
    return table


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}[{','.join(spec.axes)}]"


def _recipes() -> Table:
    table = _table("recipes", "name", "group", "hazard")
    for recipe in RECIPES.values():
        table.add_row(recipe.name, recipe.group, recipe.hazard)
    return table


def _formats() -> Table:
    columns = ("name", "bits", "unit roundoff", "smallest normal", "largest", "use")
    table = _table("formats", *columns)
    for fmt in CONTRACT_FORMATS.values():
        use = "dtype, contract" if fmt.name in FORMATS else "contract"
        table.add_row(
            fmt.name,
            str(fmt.bits),
            f"{fmt.unit_roundoff:.3g}",
            f"{fmt.smallest_normal:.3g}",
            f"{fmt.largest:.3g}",
            use,
        )
    return table


def _contracts() -> Table:
    table = _table("contract keys", "key", "default", "values")
    default = Contract()
    for field in fields(Contract):
        value = getattr(default, field.name)
        table.add_row(field.name, _default(value), _VALUES[field.name])
    return table


def _default(value: object) -> str:
    match value:
        case str() | int():
            return str(value)
        case ():
            return "none"
        case None:
            return "same"
        case _:
            return str(getattr(value, "kind", None) or _model(value))


def _model(value: object) -> str:
    e0, e1 = getattr(value, "e0", 0.0), getattr(value, "e1", 0.0)
    return f"{e0:g}+{e1:g}x"
