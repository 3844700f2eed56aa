"""How strong the gates of a case are: what decides over range and memory."""

import numpy as np

from scancheck.formats import FloatArray
from scancheck.recipes.inputs import Inputs


def log_decays(op: str, inputs: Inputs) -> tuple[float, float]:
    """Mean log decay a token over everything, and of the chain where it is strongest.

    Minus infinity where a decay is zero; NaN for a sequence without tokens.
    """
    logs = _logs(op, inputs)
    if not logs.size:
        return np.nan, np.nan
    return float(logs.mean()), float(logs.min())


def _logs(op: str, inputs: Inputs) -> FloatArray:
    """Mean log decay over the tokens of every chain.

    selective_scan's log decay is linear in the step, so that the mean step is enough.
    """
    tensors = inputs.tensors
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if op == "linear_scan":
            gates = tensors.get("g")
            if gates is None:
                gates = np.log(np.abs(tensors["a"]))
            return _mean(gates, axis=1)
        step = tensors["delta"]
        if "delta_bias" in tensors:
            step = step + tensors["delta_bias"][:, None]
        if inputs.switches.get("delta_softplus"):
            step = np.logaddexp(0.0, step)
        mean = _mean(step, axis=2)
        return np.asarray(mean[:, :, None] * tensors["A"], dtype=np.float64)


def _mean(values: FloatArray, axis: int) -> FloatArray:
    if not values.size:
        return np.zeros(0)
    return np.asarray(values.mean(axis=axis), dtype=np.float64)
