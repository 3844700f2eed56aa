"""Sizes of the listed cases, all but their lengths: a few of every kind, and wide."""

from typing import Any

Sizes = dict[str, int]
Wide = tuple[tuple[Sizes, dict[str, Any]], ...]

SCAN_SIZES: tuple[Sizes, ...] = (
    {"B": 1, "D": 17},
    {"B": 2, "D": 8},
    {"B": 3, "D": 3},
    {"B": 1, "D": 1},
    {"B": 2, "D": 5},
)
SELECTIVE_SIZES: tuple[Sizes, ...] = (
    {"B": 1, "D": 4, "N": 4},
    {"B": 2, "D": 2, "N": 3},
    {"B": 1, "D": 6, "N": 1},
    {"B": 3, "D": 1, "N": 5},
    {"B": 2, "D": 4, "N": 16},
)
# Value heads that share a key head and those that do not; K and V apart and odd, and
# once alike, since a state that is handed out transposed shows its shape elsewhere.
GROUPED_SIZES: tuple[Sizes, ...] = (
    {"B": 1, "H": 2, "HV": 4, "K": 5, "V": 3},
    {"B": 2, "H": 2, "HV": 2, "K": 3, "V": 5},
    {"B": 1, "H": 1, "HV": 3, "K": 7, "V": 2},
    {"B": 3, "H": 1, "HV": 1, "K": 2, "V": 1},
    {"B": 2, "H": 1, "HV": 2, "K": 4, "V": 4},
)
HEAD_SIZES: tuple[Sizes, ...] = (
    {"B": 1, "H": 3, "K": 5, "V": 3},
    {"B": 2, "H": 2, "K": 3, "V": 5},
    {"B": 1, "H": 1, "K": 7, "V": 2},
    {"B": 3, "H": 1, "K": 2, "V": 1},
    {"B": 2, "H": 2, "K": 4, "V": 4},
)
# One to three delta steps a token.
PRODUCT_SIZES: tuple[Sizes, ...] = tuple(
    sizes | {"M": substeps}
    for sizes, substeps in zip(HEAD_SIZES, (2, 3, 1, 2, 2), strict=True)
)
SSD_SIZES: tuple[Sizes, ...] = (
    {"B": 1, "H": 4, "P": 3, "G": 2, "N": 5},
    {"B": 2, "H": 2, "P": 5, "G": 2, "N": 3},
    {"B": 1, "H": 3, "P": 2, "G": 1, "N": 7},
    {"B": 3, "H": 1, "P": 1, "G": 1, "N": 2},
    {"B": 2, "H": 2, "P": 4, "G": 1, "N": 4},
)
# More channels than one block takes, in whole vectors of 16 bytes and groups of 16:
# kernels may have a way of their own for such tensors, and only for them.
WIDE_SCAN: Wide = (
    ({"B": 2, "D": 136}, {"form": "a"}),
    ({"B": 2, "D": 136}, {"form": "g"}),
)
WIDE_SELECTIVE: Wide = (
    ({"B": 2, "D": 64, "N": 16}, {"keys": "time"}),
    ({"B": 2, "D": 64, "N": 16, "G": 2}, {"keys": "grouped"}),
)
WIDE_GROUPED: Wide = (
    ({"B": 2, "H": 1, "HV": 2, "K": 32, "V": 64}, {}),
    ({"B": 2, "H": 2, "HV": 2, "K": 64, "V": 32}, {}),
)
WIDE_HEADS: Wide = (({"B": 2, "H": 2, "K": 32, "V": 64}, {}),)
WIDE_PRODUCT: Wide = (({"B": 2, "H": 2, "K": 32, "V": 64, "M": 2}, {}),)
WIDE_SSD: Wide = (
    ({"B": 2, "H": 2, "P": 64, "G": 1, "N": 32}, {}),
    ({"B": 2, "H": 2, "P": 32, "G": 2, "N": 64}, {}),
)
