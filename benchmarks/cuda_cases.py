"""Inputs on which CUDA kernels are compared with their CPU models.

Shapes from one step to many chunks with tails, few and many channels and states, with
and without what is optional, rows of wider tensors, and gates from slow to strong, with
results that are subnormal or leave the range.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

Tensors = dict[str, torch.Tensor]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WIDER = 48
"""Elements that a row of a wider tensor has in addition; those cut off are NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is drawn for one call."""

    sizes: tuple[int, ...]  # B, T, D; or B, D, L, N and the groups of B and C
    gates: str = "usual"  # slow, strong, subnormal or growing
    optional: tuple[str, ...] = ()  # tensors and switches
    form: str = ""  # a or g; keys of selective_scan: grouped, time, or those constant
    first: int | None = None  # of a row in a wider one; None: whole tensors

    @property
    def label(self) -> str:
        """The case in a few words."""
        how = "whole" if self.first is None else f"rows from {self.first}"
        parts = (
            "x".join(map(str, self.sizes)),
            self.gates,
            self.form,
            "+".join(self.optional) or "nothing optional",
            how,
        )
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Inputs and cotangents; those of a wider tensor as views of it."""

    tensors: Tensors
    cotangents: list[torch.Tensor]
    switches: dict[str, bool] = field(default_factory=dict)


_INITIAL = ("initial_state",)
_ALL = ("D", "z", "delta_bias", "initial_state", "delta_softplus")

LINEAR = (
    Case(sizes=(2, 1, 3)),
    Case(sizes=(1, 2, 1), optional=_INITIAL),
    Case(sizes=(2, 17, 5), optional=_INITIAL, gates="strong"),
    Case(sizes=(3, 256, 64), optional=_INITIAL, gates="slow"),
    Case(sizes=(2, 255, 33)),
    Case(sizes=(2, 257, 66), optional=_INITIAL, gates="strong"),
    Case(sizes=(2, 700, 66), optional=_INITIAL),
    Case(sizes=(2, 700, 64), optional=_INITIAL, first=1),
    Case(sizes=(2, 520, 64), gates="slow", first=8),
    Case(sizes=(1, 1111, 7), optional=_INITIAL, gates="subnormal"),
    Case(sizes=(2, 600, 130), optional=_INITIAL, gates="growing"),
    # More chunks than the tree between them has groups.
    Case(sizes=(1, 35 * 256 + 7, 2), optional=_INITIAL, gates="slow"),
)
"""Of each form of the decay, a and g."""

SELECTIVE = (
    Case(sizes=(1, 1, 1, 1, 1), optional=_ALL),
    Case(sizes=(2, 40, 648, 16, 2), optional=_ALL),
    Case(sizes=(1, 33, 201, 3, 1), optional=_ALL, gates="slow"),
    Case(sizes=(2, 96, 200, 16, 2), optional=_ALL, gates="strong"),
    Case(sizes=(1, 400, 80, 7, 1), optional=_ALL, form="time"),
    Case(sizes=(1, 12, 320, 64, 3), optional=_ALL, gates="slow"),
    Case(sizes=(1, 3, 77, 256, 1), optional=_ALL),
    Case(sizes=(2, 64, 136, 16, 1)),
    Case(sizes=(2, 19, 136, 1, 1), optional=("z", "delta_bias")),
    Case(sizes=(2, 64, 264, 16, 1), optional=_ALL, first=8),
    Case(sizes=(2, 24, 264, 16, 1), optional=_ALL, first=3),
    Case(sizes=(2, 48, 96, 16, 1), optional=("D", "initial_state"), gates="subnormal"),
    Case(sizes=(1, 16, 1057, 16, 1), optional=_ALL, gates="growing"),
    # Twelve warps a block, one block a multiprocessor.
    Case(sizes=(132, 192, 16, 16, 1), optional=_ALL),
)
CONSTANT = tuple(
    Case(sizes=(2, 6, 100, 20, 2), optional=_ALL, form=form)
    for form in ("constant B", "constant C", "constant B and C")
)
"""Not in the order of time."""


def cases_of(name: str) -> Iterator[Case]:
    """Those that the CUDA kernel of that name takes."""
    _, op, order, variant, *_ = name.split(".")
    if op == "selective_scan":
        yield from SELECTIVE if order == "time" else SELECTIVE + CONSTANT
        return
    for case in LINEAR:
        for form in ("g",) if variant.endswith("segsum") else ("a", "g"):
            yield Case(
                sizes=case.sizes,
                gates=case.gates,
                optional=case.optional,
                form=form,
                first=case.first,
            )


def drawn(name: str, case: Case, dtype: str, device: str = "cpu") -> Drawn:
    """The same numbers on every device, drawn on the CPU."""
    draw = torch.Generator().manual_seed(hash_of(case))
    if name.split(".")[1] == "linear_scan":
        found = _linear_scan(case, DTYPES[dtype], draw)
    else:
        found = _selective_scan(case, DTYPES[dtype], draw)
    rows = ("a", "g", "b", "u", "delta", "z", "B", "C")
    tensors = {
        name: _placed(x, case.first if name in rows and x.ndim > 2 else None, device)
        for name, x in found.tensors.items()
    }
    cotangents = [x.to(device) for x in found.cotangents]
    return Drawn(tensors=tensors, cotangents=cotangents, switches=found.switches)


def hash_of(case: Case) -> int:
    """A seed from the sizes, the same in every process."""
    seed = 0
    for size in case.sizes:
        seed = (31 * seed + size) % 2**31
    return seed


def _placed(x: torch.Tensor, first: int | None, device: str) -> torch.Tensor:
    """On the device; in rows from element `first` of a wider tensor, or whole."""
    if first is None:
        return x.to(device)
    shape = (*x.shape[:-1], x.shape[-1] + WIDER)
    wide = torch.full(shape, torch.nan, dtype=x.dtype, device=device)
    view = wide[..., first : first + x.shape[-1]]
    view.copy_(x)
    return view


def _linear_scan(case: Case, dtype: torch.dtype, draw: torch.Generator) -> Drawn:
    B, T, D = case.sizes
    uniform = torch.rand((B, T, D), generator=draw)
    b = torch.randn((B, T, D), generator=draw)
    logs = {
        "usual": -0.2 * uniform,
        "slow": -1e-4 * uniform,
        "strong": -100 * uniform,
        "subnormal": -0.2 * uniform,
        "growing": 0.8 * uniform - 0.2,
    }[case.gates]
    if case.gates == "subnormal":
        b = b * (2.0**-22 if dtype is torch.float16 else 2.0**-131)
    gate = logs
    if case.form == "a":
        sign = torch.rand((B, T, D), generator=draw) < 0.1
        gate = logs.exp() * torch.where(sign, -1.0, 1.0)
    tensors = {case.form: gate.to(dtype), "b": b.to(dtype)}
    if "initial_state" in case.optional:
        tensors["initial_state"] = torch.randn((B, D), generator=draw)
        if case.gates == "subnormal":
            tensors["initial_state"] *= 2.0**-131
    bars = [
        torch.randn((B, T, D), generator=draw).to(dtype),
        torch.randn((B, D), generator=draw),
    ]
    return Drawn(tensors=tensors, cotangents=bars)


def _selective_scan(case: Case, dtype: torch.dtype, draw: torch.Generator) -> Drawn:
    B, D, L, N, G = case.sizes

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=draw)

    rates = {
        "usual": -torch.exp(2 * normal(D, N)),
        "slow": -(10 ** (-4 + 2 * torch.rand((D, N), generator=draw))),
        "strong": -torch.exp(3 + normal(D, N)),
        "subnormal": -torch.exp(normal(D, N)),
        "growing": 0.05 * normal(D, N),
    }[case.gates]
    softplus = "delta_softplus" in case.optional
    delta = 0.5 * normal(B, D, L) + (1.0 if case.gates == "strong" else -2.0)
    u = normal(B, D, L)
    if case.gates == "subnormal":
        u = u * (2.0**-22 if dtype is torch.float16 else 2.0**-130)
    keys = (B, N, L) if case.form == "time" else (B, G, N, L)
    tensors = {
        "u": u.to(dtype),
        "delta": (delta if softplus else delta.abs()).to(dtype),
        "A": rates,
    }
    for key in ("B", "C"):
        constant = case.form.startswith("constant") and key in case.form
        tensors[key] = normal(D, N) if constant else normal(*keys).to(dtype)
    optional = {
        "D": normal(D),
        "z": (3 * normal(B, D, L)).to(dtype),
        "delta_bias": 0.1 * normal(D),
        "initial_state": normal(B, D, N),
    }
    if case.gates == "subnormal":
        optional["initial_state"] *= 2.0**-130
    tensors |= {k: x for k, x in optional.items() if k in case.optional}
    bars = [normal(B, D, L).to(dtype), normal(B, D, N)]
    return Drawn(
        tensors=tensors, cotangents=bars, switches={"delta_softplus": softplus}
    )
