"""A first-order recurrence by cumulative log-sum-exp over the whole length.

After F. A. Heinsen, "Efficient parallelization of a ubiquitous sequential computation"
(2023): with c_t the running sum of the log decays g,

    h_t = exp(c_t + log(h_0 + sum_{j <= t} exp(log b_j - c_j)))

where complex logarithms carry the signs of h_0 and b. Two torch calls do all the work.

    scancheck verify examples/heinsen_scan.py:heinsen_scan --op linear_scan --gradients
"""

import torch
from torch import Tensor


def heinsen_scan(
    *, g: Tensor, b: Tensor, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h [B, T, D] and the final state [B, D], from log decays g and inputs b."""
    if initial_state is None:
        initial_state = torch.zeros_like(b[:, 0])
    values = torch.cat([initial_state[:, None], b], dim=1)
    log_values = torch.log(torch.complex(values, torch.zeros_like(values)))
    zero = torch.zeros_like(g[:, :1])
    log_decay = torch.cat([zero, torch.cumsum(g, dim=1)], dim=1)
    log_h = log_decay + torch.logcumsumexp(log_values - log_decay, dim=1)
    h = torch.exp(log_h).real
    return h[:, 1:], h[:, -1].clone()
