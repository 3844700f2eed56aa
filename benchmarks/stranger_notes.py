"""What is known about strangers' verdicts: kernel or ruler, and why."""

NOTES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("accelerated_scan.ref",),
        "The kernel: one token raises, because its tree of log2(T) levels has none for "
        "T = 1 and splits an empty level (`scan1` recurses before it looks at the "
        "level). Every other length passes, gradients included; T = 0 and an empty "
        "batch are handled.",
    ),
    (
        ("jax.lax.associative_scan",),
        "No fault. Two cases of `subnormal_state` are RANGE here and not in torch: XLA "
        "flushes subnormal numbers to zero on the CPU, which the default contract "
        "allows (ftz=either).",
    ),
    (
        ("mambapy.pscan", "mambapy.selective_scan", "mambapy.selective_scan_seq"),
        "No fault, in the hand-written backward neither. The sequential method is "
        "judged by its declared order. A length of 0 raises and, in the parallel scan, "
        "an empty batch; neither is part of a kernel's promise unless it says so.",
    ),
    (
        ("torch.associative_scan.generic", "torch.associative_scan.pointwise"),
        'The kernel: in mode "pointwise" the gradient of the decays misses terms from '
        "two tokens on, zero where it is not; outputs and the gradient of b are right. "
        'Mode "generic" is right.',
    ),
    (
        ("examples/heinsen_scan.py:heinsen_scan",),
        "The kernel, or rather its form. Under the default contract, which knows no "
        "logarithms, outputs fail by up to some hundred budgets and the errors shrink "
        "with the format: exp(c_t + log-sum) turns the absolute error of a sum of logs "
        "over the whole sequence into a relative one, so that values that a loop gets "
        "to the last bit lose as many bits as |c_t| has (1.47674 + 3e-6 already at the "
        "first token, where c = -70). That is what log=full declares, and autograd "
        "through the running sum is gate_gradient=reverse_cumsum; log=full takes a "
        "backward whose logs count from either end of the sequence, and autograd's, "
        "which reuses c_t, counts from the start. Under both contracts everything that "
        "is finite is within its budget. Cases of `subnormal_state` and the like "
        "are RANGE: inputs that a kernel may flush to zero have no logarithm, and the "
        "gradient divides by them. Two faults no contract covers. An input of exactly "
        "zero has the logarithm -inf, and gradients of b, g and the initial state "
        "become NaN (nearly all in `impulse_at_chunk_edge`). And torch's complex "
        "logcumsumexp itself gives NaN where a negative sum meets a term about e^700 "
        "times as large, in complex64 and complex128: "
        "`torch.logcumsumexp(torch.tensor([3.1415927j, 700]), 0)`; every NaN in h is "
        "that, and outputs that are NaN are not the algorithm's fault.",
    ),
    (
        ("examples/cumprod_scan.py:cumprod_scan",),
        "The kernel: the forward is right and the gradient of the decays is lost. The "
        "backward of torch.cumprod sums gradient times running product and divides by "
        "the decay. In `decay_near_zero` (decays near 1e-26) the product of the first "
        "two tokens underflows to zero, so that the quotient is 0, where the true "
        "gradient, the product of all other factors, is an ordinary 2e-26; no order of "
        "multiplications alone loses it. In fp64 the products stay in range, and it "
        "passes. Decays of exactly zero are handled: torch has a path of "
        "its own for them (`exact_reset` passes).",
    ),
)
