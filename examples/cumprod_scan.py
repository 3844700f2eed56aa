"""A first-order recurrence in chunks, whose running product is torch.cumprod.

The forward is exact algebra: every chunk from a zero state, the states between chunks
chained, each decayed into its chunk by the running product of the decays. The backward
is autograd's, and torch.cumprod's divides by the decay: its gradient is the reversed
running sum of (gradient times product), over the decay.

    scancheck verify examples/cumprod_scan.py:cumprod_scan --op linear_scan --gradients
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64


def cumprod_scan(
    *, a: Tensor, b: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] and the final state [B, D], from decays a and inputs b."""
    batch, steps, channels = b.shape
    missing = -steps % CHUNK
    shape = (batch, (steps + missing) // CHUNK, CHUNK, channels)
    decay = pad(a, (0, 0, 0, missing), value=1.0).reshape(shape)
    drive = pad(b, (0, 0, 0, missing)).reshape(shape)
    local = torch.zeros_like(drive[:, :, 0])
    states = []
    for token in range(CHUNK):
        local = decay[:, :, token] * local + drive[:, :, token]
        states.append(local)
    product = torch.cumprod(decay, dim=2)
    carry = torch.zeros_like(b[:, 0]) if initial_state is None else initial_state
    entering = []
    for chunk in range(shape[1]):
        entering.append(carry)
        carry = product[:, chunk, -1] * carry + states[-1][:, chunk]
    h = torch.stack(states, 2) + product * torch.stack(entering, 1)[:, :, None]
    return h.flatten(1, 2)[:, :steps], carry
