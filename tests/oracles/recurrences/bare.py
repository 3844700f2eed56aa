"""An op whose tensors are the fields of the normal form, for what ops may lower to."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scancheck.ops.normal_form import Cotangents, Lowered, Op, TensorSpec

FloatArray = NDArray[np.float64]
FIELDS = {
    "w": ("G", "T", "Kw", "One"),
    "v": ("G", "T", "L"),
    "k": ("G", "T", "K", "One"),
    "r": ("G", "T", "K", "One"),
    "p": ("G", "T", "K", "One"),
    "q": ("G", "T", "K", "One"),
    "z": ("G", "T", "One", "L"),
}
STATE = ("G", "K", "L")


def bare_op(*parts: str) -> Op:
    """Of `rank` (p, q), `z`, `before`: the parts beside a diagonal transition."""
    left_out = set()
    if "rank" not in parts:
        left_out |= {"p", "q"}
    if "z" not in parts:
        left_out.add("z")
    names = [name for name in FIELDS if name not in left_out]

    def lower(tile: Mapping[str, Any], carry: Any) -> tuple[Lowered, Any]:
        given = {name: tile[name] for name in names}
        return Lowered(reads_before="before" in parts, **given), None

    def pullback(
        tile: Mapping[str, Any], lowered: Lowered, cotangents: Cotangents
    ) -> dict[str, Any]:
        bars = {name: getattr(cotangents, name) for name in names}
        bars["w"] = bars["w"].sum(3)[:, :, :, None]
        if tile["w"].shape[2] == 1:
            bars["w"] = bars["w"].sum(2)[:, :, None, :]
        return bars

    return Op(
        name="bare",
        time_axis="T",
        size_names=("G", "T", "K", "L", "Kw", "One"),
        inputs=(
            *(TensorSpec(name=name, axes=FIELDS[name]) for name in names),
            TensorSpec(name="s", axes=STATE, kind="state"),
        ),
        outputs=(
            TensorSpec(name="o", axes=("G", "T", "L")),
            TensorSpec(name="last", axes=STATE, kind="state"),
        ),
        state="s",
        forms=(),
        switches=(),
        lower=lower,
        epilogue=lambda tile, o: o,
        epilogue_pullback=lambda tile, o, bar: (bar, {}),
        lower_pullback=pullback,
        state_in=lambda s, sizes: s,
        state_out=lambda s, sizes: s,
        group_shape=lambda sizes: (sizes["G"], sizes["K"], sizes["L"]),
        reads_before="before" in parts,
        diagonal="rank" not in parts,
    )


def drawn(
    op: Op, sizes: Mapping[str, int], seed: int
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Tensors and cotangents: contracting steps, a delta rule where there is a rank."""
    rng = np.random.default_rng(seed)
    sizes = dict(sizes) | {"One": 1}
    tensors = {
        spec.name: rng.normal(size=[sizes[axis] for axis in spec.axes])
        for spec in op.inputs
    }
    tensors["w"] = np.exp(-np.abs(tensors["w"]) / 8)
    if "p" in tensors:
        key = tensors["q"] / np.linalg.norm(tensors["q"], axis=2, keepdims=True)
        tensors["q"] = tensors["w"] * key
        tensors["p"] = -rng.uniform(0, 2, (*key.shape[:2], 1, 1)) * key
    if "z" in tensors:
        tensors["z"] = np.exp(-np.abs(tensors["z"]) / 8)
    bars = {
        spec.name: rng.normal(size=[sizes[axis] for axis in spec.axes])
        for spec in op.outputs
    }
    return tensors, bars


def by_autograd(
    tensors: Mapping[str, FloatArray],
    bars: Mapping[str, FloatArray],
    *,
    before: bool = False,
    dtype: torch.dtype = torch.float64,
) -> dict[str, FloatArray]:
    """Outputs and gradients of the recurrence as its definition says it."""
    leaves = {n: torch.tensor(x, dtype=dtype) for n, x in tensors.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    state, outs = leaves["s"], []
    for t in range(leaves["v"].shape[1]):
        old = state
        moved = leaves["w"][:, t] * state
        if "p" in leaves:
            read = (leaves["q"][:, t] * state).sum(1)
            moved = moved + leaves["p"][:, t] * read[:, None]
        if "z" in leaves:
            moved = moved * leaves["z"][:, t]
        state = moved + leaves["k"][:, t] * leaves["v"][:, t, None]
        outs.append((leaves["r"][:, t] * (old if before else state)).sum(1))
    found = {"o": torch.stack(outs, 1), "last": state}
    total = sum(
        (found[name] * torch.tensor(bar, dtype=dtype)).sum()
        for name, bar in bars.items()
    )
    gradients = torch.autograd.grad(total, list(leaves.values()))
    found |= dict(zip(leaves, gradients, strict=True))
    return {n: x.detach().double().numpy() for n, x in found.items()}
