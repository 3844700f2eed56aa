"""A test case as data: everything needed to build the same tensors anywhere."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input to a kernel, before any tensor exists.

    `sizes` and `options` are sorted tuples of pairs, so that a case is hashable and
    its id does not depend on the order in which they were given.
    """

    op: str  # registered op name, for example "linear_scan"
    sizes: tuple[tuple[str, int], ...]  # the op's size names, for example B, T, D
    dtype: str  # storage format of the op's main tensors
    recipe: str  # input family, named by its hazard
    seed: int  # seed of the draw, 0 .. 2**63 - 1
    options: tuple[tuple[str, Any], ...] = field(default=())  # op and recipe options

    @property
    def id(self) -> str:
        """A short stable name: op, dtype, recipe, sizes and a digest of all fields."""
        text = json.dumps(case_to_json(self), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        sizes = "x".join(str(value) for _, value in self.sizes)
        # An op of a user's own is named by its file.
        op = self.op.rpartition("/")[2].replace(":", "-")
        return f"{op}-{self.dtype}-{self.recipe}-{sizes}-{digest}"


def make_case(
    op: str,
    sizes: dict[str, int],
    *,
    dtype: str = "fp32",
    recipe: str,
    seed: int,
    options: dict[str, Any] | None = None,
) -> Case:
    """A case with its sizes and options in canonical order."""
    return Case(
        op=op,
        sizes=tuple(sorted(sizes.items())),
        dtype=dtype,
        recipe=recipe,
        seed=seed,
        options=tuple(
            # JSON has lists for tuples, as for the offsets of packed sequences.
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted((options or {}).items())
        ),
    )


def case_to_json(case: Case) -> dict[str, Any]:
    """The case as plain JSON values; `case_from_json` gives it back."""
    return {
        "op": case.op,
        "sizes": dict(case.sizes),
        "dtype": case.dtype,
        "recipe": case.recipe,
        "seed": case.seed,
        "options": dict(case.options),
    }


def case_from_json(data: dict[str, Any]) -> Case:
    """The case that `case_to_json` wrote."""
    return make_case(
        data["op"],
        data["sizes"],
        dtype=data["dtype"],
        recipe=data["recipe"],
        seed=data["seed"],
        options=data["options"],
    )
