"""Rows made up for the tests of the report."""

from collections.abc import Callable
from typing import Any

import pytest

from scancheck.study.row import Row
from scancheck.study.store import Study

FIELDS: dict[str, Any] = {
    "kind": "case",
    "section": "grid",
    "job": "0123456789abcdef",
    "op": "linear_scan",
    "kernel": "model.linear_scan.chunk64.plain",
    "algorithm": "chunk",
    "variant": "plain",
    "storage": "bf16",
    "compute": "fp32",
    "state": "fp32",
    "chunk": 64,
    "T": 1024,
    "B": 1,
    "D": 32,
    "N": None,
    "recipe": "gaussian_slow",
    "form": None,
    "seed": 0,
    "cotangent": None,
    "case_id": "linear_scan-bf16-gaussian_slow-1x32x1024-0123456789",
    "tensor": "h",
    "sequence": True,
    "verdict": "PASS",
    "reason": "",
    "values": 32768,
    "max_ratio": 0.9,
    "rms_rel": 1.75e-3,
    "floor_rel": 1.7e-3,
    "max_rel": 8e-3,
    "max_ulp": 0.5,
    "rms_ulp": 0.3,
    "err_over_uM": 0.8,
    "effective_bits": 9.1,
    "vacuous_share": 0.0,
    "rho": 1.0,
    "max_budget_rel": 2e-2,
}


def _made_up(**changes: Any) -> Row:
    return Row(**(FIELDS | changes))


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Row]:
    """Makes a row that passes, with the fields given by name changed."""
    return _made_up


@pytest.fixture(scope="session")
def small_study() -> Study:
    """Two ops, three formats, two chunk sizes, with profiles, lengths and gradients."""
    rows = []
    for op, tensor in (("linear_scan", "h"), ("selective_scan", "y")):
        for chunk in (16, 64):
            ways = (
                ("fp32", "fp32", 4e-8 * chunk, 2.5e-8),
                ("bf16", "fp32", 1.75e-3, 1.7e-3),
                ("bf16", "bf16", 1e-2, 1.7e-3),
            )
            for storage, compute, error, floor in ways:
                row = _made_up(
                    op=op,
                    tensor=tensor,
                    chunk=chunk,
                    storage=storage,
                    compute=compute,
                    state=compute,
                    rms_rel=error,
                    floor_rel=floor,
                    kernel=f"model.{op}.chunk{chunk}.plain",
                )
                rows.append(row)
        rows += _curves(op, tensor)
        rows.append(
            _made_up(op=op, tensor="dg", sequence=False, cotangent="dense", T=256)
        )
    return Study(
        rows=tuple(rows),
        seed=7,
        profile="quick",
        environment={"scancheck": "0.1.0", "cpu": "an <odd> & name"},
        seconds=12.0,
    )


def _curves(op: str, tensor: str) -> list[Row]:
    """A profile of eight buckets, and three lengths with their bounds."""
    common = {"op": op, "tensor": tensor, "recipe": "unit_decay"}
    profile = [
        _made_up(kind="position", token=128 * n, tokens=128, rms_rel=1e-3 * n, **common)
        for n in range(8)
    ]
    lengths = [
        _made_up(kind="length", T=T, rms_rel=1e-7 * T, probable_rel=1e-3, **common)
        for T in (64, 256, 1024)
    ]
    return profile + lengths
