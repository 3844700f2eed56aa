"""What the backward pass has to keep: the states of all tokens, or of chunk edges."""

from dataclasses import dataclass

from scancheck.formats import FORMATS

# Of a Mamba layer of 130 million parameters (Gu and Dao 2023), batch 16.
MAMBA_LAYER: dict[str, int] = {
    "batch": 16,
    "channels": 1536,
    "states": 16,
    "steps": 2048,
}
STATE_FORMAT = "fp32"
CHUNKS = (16, 64, 128, 256, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Bytes of states that one layer keeps between forward and backward."""

    chunk: int
    every_token: int  # all states
    chunk_edges: int  # one state a chunk, the rest is computed again
    working: int  # states of one chunk, computed again at a time


def ledger(*, batch: int, channels: int, states: int, steps: int, chunk: int) -> Ledger:
    """The ledger of one layer with its states in fp32.

    A state is batch x channels x states values; chunks are counted up.
    """
    state = batch * channels * states * FORMATS[STATE_FORMAT].bits // 8
    return Ledger(
        chunk=chunk,
        every_token=state * steps,
        chunk_edges=state * -(-steps // chunk),
        working=state * min(chunk, steps),
    )


def ledgers() -> list[Ledger]:
    """The ledger of a Mamba layer for each chunk size."""
    return [ledger(**MAMBA_LAYER, chunk=chunk) for chunk in CHUNKS]


def bytes_in_words(count: float) -> str:
    """Decimal units, as 12.6 MB or 3.2 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000.0:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000.0
    return f"{count:.1f} GB"
