"""A single one in a row of zeros: the output is a product of decays, read out bare."""

import numpy as np

from scancheck.recipes.chains import Chains, Plan, draws
from scancheck.recipes.streams import integers, uniform


def impulse_at_chunk_edge(plan: Plan) -> Chains:
    """One drive of 1 per chain, at a chunk edge or one token beside it; slow decay.

    The first chain has a first state of 1 instead, where there is one. Decays differ
    from token to token, so that a product over the wrong tokens shows at full size.
    """
    chains = plan.batch * plan.channels
    where = integers(draws(plan, "edge"), 0, 2**20, (chains,))
    positions = np.array(_edge_tokens(plan), dtype=np.int64)
    drive = np.zeros(plan.sequence)
    state = np.zeros(plan.state)
    first_driven = 1 if plan.initial_state else 0
    if plan.steps:
        for chain in range(first_driven, chains):
            row, channel = divmod(chain, plan.channels)
            token = positions[where[chain] % len(positions)]
            drive[row, token, channel] = 1.0
    state[:1, :1] = 1.0
    memory = np.array([plan.chunk, 4 * plan.chunk, 2 * plan.steps + 2])
    chosen = integers(draws(plan, "speed"), 0, len(memory) - 1, plan.speeds)
    return Chains(
        step=uniform(draws(plan, "step"), 0.5, 1.5, plan.sequence),
        speed=1.0 / np.maximum(memory, 4.0)[chosen],
        drive=drive,
        state=state,
    )


def _edge_tokens(plan: Plan) -> list[int]:
    """The first and last token, and those around each chunk edge."""
    around = {0, plan.steps - 1}
    for edge in range(plan.chunk, plan.steps + 1, plan.chunk):
        around |= {edge - 1, edge, edge + 1}
    return sorted(token for token in around if 0 <= token < plan.steps)
