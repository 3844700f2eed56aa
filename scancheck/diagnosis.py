"""Where an error sits and what probably caused it: the authors' symptom table as data.

Patterns of the wrong elements alone are read here; experiments that run a kernel or an
oracle again belong to scancheck.checks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]

# Positions that chunks have to have in common; fewer may coincide by chance.
TELLING = 3
# They say less than any other cause.
VAGUE = ("unknown", "local", "carry", "gradient", "overflow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One likely cause: how to say it, and what to look at."""

    text: str
    advice: str


CAUSES: dict[str, Cause] = {
    "carry_total": Cause(
        text="the carry between chunks is formed from the wrong total",
        advice="the carry into chunk k must use totals and carry of chunk k-1; "
        "step through two chunks of four tokens",
    ),
    "carry_index": Cause(
        text="the carry is taken from one chunk too early",
        advice="check the index of the carry buffer; "
        "step through three chunks of four tokens",
    ),
    "carry_dropped": Cause(
        text="the state is not carried across chunk edges",
        advice="add the carried state, decayed to each token, to every later chunk",
    ),
    "carry_decay": Cause(
        text="the carried state is decayed by a wrong factor",
        advice="check the chunk's total decay: inclusive against exclusive product, "
        "rounding or quantisation of the decay",
    ),
    "carry": Cause(
        text="the carried state is wrong: right up to a chunk edge, wrong after it",
        advice="compare the carry into the first wrong chunk with the true state there",
    ),
    "initial_state": Cause(
        text="the initial state is ignored or lost",
        advice="the initial state is the carry into chunk 0 and decays through every "
        "later chunk as any other state",
    ),
    "partial_chunk": Cause(
        text="the last, partial chunk is not computed",
        advice="round the number of chunks up and mask the tail with the identity "
        "(decay 1, input 0)",
    ),
    "in_place_scan": Cause(
        text="in-chunk combine steps read wrong values, as already overwritten ones",
        advice="use a second buffer or a barrier between read and write of each level, "
        "and check which step each of them reads",
    ),
    "local": Cause(
        text="the error arises inside chunks; what is carried between them is right",
        advice="check indices, masks and order of the in-chunk combine",
    ),
    "short_state": Cause(
        text="the state is kept in a shorter format than claimed",
        advice="keep the state in fp32, or declare its format with "
        "--contract state=FORMAT",
    ),
    "short_compute": Cause(
        text="the arithmetic is done in a shorter format than claimed",
        advice="compute in fp32 (switch TF32 and 16-bit accumulation off), or declare "
        "it with --contract compute=FORMAT",
    ),
    "local_element": Cause(
        text="single elements hold a stale value of another token",
        advice="look for a write that is missed or done twice at the index shown",
    ),
    "nondeterministic": Cause(
        text="results change between identical runs: a missing barrier, unordered "
        "accumulation or uninitialised memory",
        advice="run a race checker; fill work buffers with NaN before each launch",
    ),
    "unwritten": Cause(
        text="outputs are NaN that the kernel did not compute: memory it never wrote, "
        "or a read past the end of an input",
        advice="check masks and the last block; all buffers are filled with NaN here",
    ),
    "read_before_update": Cause(
        text="each token reads the state before its own update",
        advice="read o_t from S_t, after k_t v_t^T is added; only RWKV-6 reads S_{t-1}",
    ),
    "read_after_update": Cause(
        text="each token reads the state after its own update",
        advice="read o_t from S_{t-1}, and add the bonus for the token itself",
    ),
    "state_undecayed": Cause(
        text="the gate multiplies what a token erases and writes, but not the state",
        advice="decay the state first: S' = exp(g) S; S = S' + beta k (v - S'^T k)^T",
    ),
    "erased_undecayed": Cause(
        text="what the delta rule erases is taken from the state before its decay",
        advice="decay the state first: S' = exp(g) S; S = S' + beta k (v - S'^T k)^T",
    ),
    "seen_after_decay": Cause(
        text="what the rank-one transition reads is the state after its decay",
        advice="read a^T S from S_{t-1}, before it is multiplied by exp(w)",
    ),
    "bonus_dropped": Cause(
        text="the bonus for the token itself is left out",
        advice="o_t = r^T (S_{t-1} + diag(u) k v^T): add (r . u k) v",
    ),
    "state_transposed": Cause(
        text="the final state is transposed",
        advice="hand it out as K x V, or swap its axes in the adapter",
    ),
    "overflow": Cause(
        text="an intermediate overflows, or zero meets infinity",
        advice="clamp before exp, use a masked segment sum, or renormalise the "
        "exponent",
    ),
    "gate_gradient": Cause(
        text="the gradient of the gate misses terms; outputs and other gradients are "
        "right",
        advice="d gate_t = G_t * S_{t-1}: both operands of a combine contribute, also "
        "through the other leaf",
    ),
    "state_gradient_dropped": Cause(
        text="the gradient that comes through the final state is dropped",
        advice="add the final state's cotangent to the adjoint of the last step",
    ),
    "initial_state_gradient": Cause(
        text="the gradient of the initial state is wrong or missing",
        advice="it is the adjoint that leaves the first step: a_1 * G_1",
    ),
    "gradient": Cause(
        text="outputs are right and a gradient is wrong",
        advice="check that gradient's formula, its accumulation format, and terms "
        "through final and initial state",
    ),
    "gradient_follows": Cause(
        text="the gradient is wrong where the forward pass is",
        advice="repair the forward pass first",
    ),
    "input_changed": Cause(
        text="the kernel writes into its inputs",
        advice="write results to new memory, or declare the op in place elsewhere",
    ),
    "call": Cause(
        text="the call itself failed",
        advice="see the message; the case can be replayed",
    ),
    "carry_forgets": Cause(
        text="the carry holds the chunk before and nothing older",
        advice="carry k+1 is the chunk's total decay times carry k, plus its local "
        "state: the last local state alone is no carry",
    ),
    "carry_undecayed": Cause(
        text="the state is carried through a chunk without its decay",
        advice="multiply the carry by the product of all decays of the chunk",
    ),
    "carried_read": Cause(
        text="the carried state is decayed once too often where a token reads it",
        advice="the sum of gates begins with the chunk's first token and ends with the "
        "reader's own, or with the token before it where o_t reads before the update",
    ),
    "inverse_cut": Cause(
        text="the inverse of a chunk's triangular matrix is cut short",
        advice="(I - N)(I + N^2)(I + N^4) .. is complete when the power reaches the "
        "chunk; substitution needs no powers and is as exact as N",
    ),
    "axes_swapped": Cause(
        text="the axes of heads and tokens are taken for each other",
        advice="say which layout a kernel takes; where both axes are alike, the shape "
        "cannot tell",
    ),
    "edge_decay": Cause(
        text="the first token of each chunk does not decay what came before it",
        advice="products of decays over a chunk begin with its first token's own",
    ),
    "gate_shift": Cause(
        text="each token decays by the gate of the token before it",
        advice="use the inclusive product or sum of gates: h_t = a_t h_{t-1} + b_t",
    ),
    "swapped_combine": Cause(
        text="the combine takes its two operands in the wrong order",
        advice="(a1, b1) then (a2, b2) is (a1 a2, a2 b1 + b2), which does not commute; "
        "check which argument of the scan's function is the earlier one",
    ),
    "last_token": Cause(
        text="the last token is missing from the final state",
        advice="read the final state after the last update; check the loop's bound",
    ),
    "padding": Cause(
        text="rows that pad the last chunk are not the identity",
        advice="mask decays to 1 and drives to 0 after bias and softplus are applied",
    ),
    "boundary_ignored": Cause(
        text="the state of a packed sequence runs on into the next one",
        advice="start each sequence of cu_seqlens from its own initial state, also "
        "where it begins inside a chunk",
    ),
    "boundary_moved": Cause(
        text="packed sequences are cut at edges of chunks, not where they begin",
        advice="count chunks from the first token of each sequence; the last one of "
        "each is partial",
    ),
    "sequence_slot": Cause(
        text="an empty sequence uses the states of another one",
        advice="the final state of an empty sequence is its own initial state; an "
        "index of 0 for what is not there is a real one",
    ),
    "sequence_state": Cause(
        text="a packed sequence starts from the initial state of another one",
        advice="initial states have one entry for each sequence of cu_seqlens, not for "
        "each batch row",
    ),
    "sequence_leak": Cause(
        text="NaN in the tokens of other packed sequences comes out in this one",
        advice="reset a state by selecting, not by a product with 0, which NaN "
        "survives; mask loads by the end of the sequence",
    ),
    "padding_leak": Cause(
        text="NaN at padded places comes out at tokens",
        advice="mask padding by selecting (torch.where), not by a product with 0, "
        "which NaN survives",
    ),
    "reverse_ignored": Cause(
        text="the recurrence runs forward where it is called in reverse",
        advice="start from the last token; the final state is the one after the first",
    ),
    "padding_counted": Cause(
        text="padded places of a row change its state",
        advice="mask decays to 1 and drives to 0 there, after bias and softplus",
    ),
    "row_overrun": Cause(
        text="the last chunk reads past the end of its row",
        advice="mask loads by the length of the sequence, not by that of the buffer",
    ),
    "batch_rows": Cause(
        text="a tensor of another batch row is used",
        advice="check the batch stride of the tensor named",
    ),
    "key_group": Cause(
        text="channels or heads use the keys of another group",
        advice="the group of channel d is d // (D / G); "
        "the key head of value head j is j // (HV / H)",
    ),
    "short_decay": Cause(
        text="decays are rounded to a shorter format than claimed",
        advice="keep decays, or their logarithms, in fp32",
    ),
    "short_gate_sum": Cause(
        text="running sums of log decays are kept in a shorter format than claimed",
        advice="sum log decays in fp32, and subtract before any cast",
    ),
    "short_input": Cause(
        text="an input is rounded to a shorter format than it has",
        advice="load the tensor named in its own format",
    ),
    "short_output": Cause(
        text="the output is rounded to a shorter format than its own",
        advice="look for a second rounding between the readout and the store",
    ),
    "compensation": Cause(
        text="roundings are not compensated in full, as is claimed",
        advice="compensate product and addition, and let the lost part decay as the "
        "state does",
    ),
    "inverse_decay": Cause(
        text="the past is divided out by a running product of decays, which leaves the "
        "range",
        advice="take exp of differences, never exp(-c) or 1 / P alone; shorten the "
        "chunk, or renormalise",
    ),
    "masked_overflow": Cause(
        text="exp of a positive difference overflows before the mask takes it away",
        advice="mask the exponent with -inf before exp, not its result by 0",
    ),
    "softplus_overflow": Cause(
        text="softplus overflows for large arguments",
        advice="softplus(x) is x above 20; clamp before exp",
    ),
    "softplus_sum": Cause(
        text="softplus loses small values in the sum 1 + exp(x)",
        advice="use log1p",
    ),
    "short_step": Cause(
        text="step sizes are formed in the format of the tensors",
        advice="add the bias and take softplus in fp32",
    ),
    "log_of_sigmoid": Cause(
        text="the log of a gate near one is lost in log(sigmoid(f))",
        advice="use logsigmoid, or -log1p(exp(-f))",
    ),
    "state_clamped": Cause(
        text="the carried state is clamped",
        advice="remove the clamp, or document the range of the state",
    ),
    "quantised_weights": Cause(
        text="A is quantised to a few bits",
        advice="keep A in fp32: a rate near 0 sets the memory length",
    ),
    "weight_sign": Cause(
        text="the sign of A is lost",
        advice="A is used as given; take exp of a parameter, not -|A|",
    ),
    "decay_sign": Cause(
        text="the sign of the decay is lost",
        advice="log forms hold positive decays alone: declare it with "
        "--contract domain=a:0:inf, or carry the sign",
    ),
    "decay_clamped": Cause(
        text="decays above 1 are clamped to 1",
        advice="clamp no legal value, or declare it with --contract domain=a:-1:1",
    ),
    "gradient_missing": Cause(
        text="no gradient reaches an input",
        advice="look for a detached tensor, or a backward that returns nothing for it",
    ),
    "step_gradient": Cause(
        text="the gradient of the step size misses one of its two parts",
        advice="delta enters the decay exp(delta A) and the drive delta B u",
    ),
    "silu_gradient": Cause(
        text="the gradient of silu misses a part of its slope",
        advice="silu'(z) = s (1 + z (1 - s)) with s = sigmoid(z)",
    ),
    "gradient_row": Cause(
        text="the gradient of a shared tensor holds one batch row alone",
        advice="sum it over the batch, or accumulate where rows write to one place",
    ),
    "gradient_clamped": Cause(
        text="the gradient is zero beyond a limit on its input",
        advice="the forward pass has no clamp there: leave its gradient alone",
    ),
    "gradient_cancelled": Cause(
        text="the gate gradient has lost its small values in a long sum",
        advice="form d gate_t = G_t h_{t-1} directly, or sum from the end: never total "
        "minus prefix",
    ),
    "gradient_overflow": Cause(
        text="the backward pass overflows where the forward pass is right",
        advice="mask arguments before exp, log or a division, not their results: a "
        "masked infinity has a gradient of 0 times infinity",
    ),
    "short_gradient": Cause(
        text="a gradient is accumulated in a shorter format than its own",
        advice="keep the adjoint state and sums over tokens and rows in fp32",
    ),
    "bias": Cause(
        text="roundings add up in one direction or a format is shorter than claimed",
        advice="look for truncation, a 16-bit accumulator, or a cast of the carry",
    ),
    "unknown": Cause(
        text="no known fault explains the outputs",
        advice="compare step by step around the first wrong token",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the first wrong element sits in time."""

    token: int
    chunk: int | None  # index of the chunk, where a chunk size is known or found
    position: int | None  # position inside the chunk
    where: str | None  # carry or local
    sequence: int | None = None  # of packed ones; chunk and position count within it


def locate(wrong: Mask, time_axis: int, chunk: int | None) -> Place | None:
    """The place of the earliest wrong token of one tensor; None when nothing is wrong.

    Without a known chunk size, the largest power of two from 8 to 1024 that divides
    the first wrong token is taken, where there is one.
    """
    tokens = tokens_of(wrong, time_axis)
    if not tokens.any():
        return None
    first = int(np.argmax(tokens))
    if chunk is None:
        fitting = [2**k for k in range(3, 11) if first and first % 2**k == 0]
        chunk = fitting[-1] if fitting else None
    if chunk is None:
        return Place(token=first, chunk=None, position=None, where=None)
    position = first % chunk
    carry = position == 0 and first > 0
    return Place(
        token=first,
        chunk=first // chunk,
        position=position,
        where="carry" if carry else "local",
    )


def tokens_of(wrong: Mask, time_axis: int) -> Mask:
    """Whether any element of each token is wrong."""
    others = tuple(axis for axis in range(wrong.ndim) if axis != time_axis)
    return np.asarray(wrong.any(axis=others))


def heals_inside_chunks(wrong: Mask, time_axis: int, chunk: int) -> bool:
    """Whether errors recur at the same places of later chunks and vanish between.

    An in-chunk fault leaves some positions right in every chunk, after wrong ones; a
    wrong carry spoils its chunk from the first position, and errors at random places
    seldom meet the same position twice.
    """
    tokens = tokens_of(wrong, time_axis)
    full = tokens[: len(tokens) // chunk * chunk].reshape(-1, chunk)
    spoilt = full[full.any(axis=1)]
    if len(spoilt) < 2 or spoilt[:, 0].any():
        return False
    always, ever = spoilt.all(axis=0).sum(), spoilt.any(axis=0).sum()
    return bool(always >= TELLING and 2 * always >= ever)
