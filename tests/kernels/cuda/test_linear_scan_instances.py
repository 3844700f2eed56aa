"""Which instances of linear_scan a call takes, told without a device."""

import pytest

from scancheck.kernels.cuda.linear_scan_instances import (
    ALGORITHMS,
    FORWARD,
    STORAGE,
    VARIANTS,
    Form,
    few_chains,
    forward,
    forward_shared,
    forward_tiles,
    instances,
)

H200 = 132  # multiprocessors


@pytest.mark.parametrize(
    ("batches", "channels", "chunks", "few"),
    [
        (1, 2048, 256, True),
        (2, 2048, 256, True),
        (8, 2048, 16, False),
        (1, 2048, 8, False),
        (1, 8, 256, False),
    ],
)
def test_few_chains(batches: int, channels: int, chunks: int, few: bool) -> None:
    """Long chains that leave no multiprocessor idle, and are not many."""
    assert few_chains(batches, channels, chunks, H200) == few


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_call_takes_is_compiled_and_fits(
    variant: str, dtype: str, few: bool
) -> None:
    """The instance is among those listed; two blocks fit in a multiprocessor."""
    size = 4 if dtype == "fp32" else 2
    listed = instances(FORWARD)
    for logs in (False, True):
        form = Form(
            storage=STORAGE[dtype], size=size, variant=VARIANTS[variant], logs=logs
        )
        if form.variant.of_decays is None and not logs:
            continue
        algorithm = ALGORITHMS["single_pass"]
        for tile in forward_tiles(form, algorithm, few=few):
            assert forward(form, algorithm, "CHAINED", tile) in listed
            assert tile.blocks * forward_shared(form, tile) <= 2 * 64 * 1024
