"""The functions of mlstm_kernels that are adapted, one row each.

Source: mlstm_kernels 2.0.6. Left out are `recurrent.triton_step_alternate`, whose
sequence hands it an argument that it does not take (`dtype_state`), so that every call
raises TypeError, and xl_chunk_siging, whose input gate is a sigmoid.
"""

from typing import NamedTuple

from scancheck.contract import Contract, Structure

CHUNK = 64  # tokens, the package's own number
LARGE = 128  # tokens, that of xl_chunk
SMALL = (16, 32, 64)  # tokens, of which xl_chunk has a shorter sequence's one chunk
_TRITON = ("fp32", "fp16", "bf16")
_NO_DENOMINATOR = "its gradients leave out the denominator's share"


class Form(NamedTuple):
    """One function of the package."""

    module: str  # below mlstm_kernels.torch
    function: str
    contract: Contract
    dtypes: tuple[str, ...]
    gradients: bool = False
    note: str = ""  # beside the licence
    triton: bool = False


# Chunks in torch: products in the format of the tensors, decays as exponentials of
# differences of summed log forget gates.
_IN_CHUNKS = Contract(
    structure=Structure(kind="chunk", chunk=CHUNK),
    log="diff",
    gate_gradient="reverse_cumsum",
)


def _products(chunk: int) -> Contract:
    """Chunks in Triton: products of operands in the dtype of the tensors.

    limit_chunk/fw_kernel_*.py and xl_chunk/fw_kernel_*.py round to it q, k and v, k
    times its weight, q times its decay, masked scores and every state that is read, and
    leave tl.dot its own input precision, which in fp32 is TF32 where there are tensor
    cores. States and sums are fp32. xl_chunk sums log gates from behind in the weights
    of its states, which is no worse than the difference that is declared.

    The sums of keys n are loaded and stored without a mask, in blocks of 64, or in one
    of the next power of two below that: a width like 48 is read and written beyond its
    end. The contract has no word for "16, 32 or multiples of 64", so it has the last.
    Values have masks, and tl.dot wants blocks of 16.
    """
    return Contract(
        structure=Structure(kind="chunk", chunk=chunk),
        log="diff",
        gate_gradient="reverse_cumsum",
        operands="storage",
        accumulate="truncate",
        widths=(("K", 64), ("V", 16)),
    )


FORMS = {
    "chunkwise.native_autograd": Form(
        module="chunkwise.native",
        function="mlstm_chunkwise__native_autograd",
        contract=_IN_CHUNKS,
        dtypes=("fp32", "fp64"),
        gradients=True,
    ),
    "chunkwise.native_custbw": Form(
        module="chunkwise.native",
        function="mlstm_chunkwise__native_custbw",
        contract=_IN_CHUNKS,
        dtypes=("fp32", "fp64"),
        note=f"{_NO_DENOMINATOR}; ",
    ),
    "chunkwise.triton_limit_chunk": Form(
        module="chunkwise.triton_limit_chunk",
        function="mlstm_chunkwise__limit_chunk",
        contract=_products(CHUNK),
        dtypes=_TRITON,
        note=f"{_NO_DENOMINATOR}; ",
        triton=True,
    ),
    "chunkwise.triton_xl_chunk": Form(
        module="chunkwise.triton_xl_chunk",
        function="mlstm_chunkwise__xl_chunk",
        contract=_products(LARGE),
        dtypes=_TRITON,
        note=f"{_NO_DENOMINATOR}; ",
        triton=True,
    ),
    "recurrent.native": Form(
        module="recurrent.native_sequence",
        function="mlstm_recurrent_sequence__native_fw",
        contract=Contract(compute="storage", structure=Structure(kind="sequential")),
        dtypes=("fp32", "fp16", "bf16", "fp64"),
        gradients=True,
    ),
    # In 16 bits both gates, scaled q, the outer product of k and v, the floor e^-m and
    # what is read are rounded; the state is fp32. No width has a mask.
    "recurrent.triton": Form(
        module="recurrent.native_sequence",
        function="mlstm_recurrent_sequence__triton_step_fused_fw",
        contract=Contract(
            compute="storage",
            structure=Structure(kind="sequential"),
            widths=(("K", 64), ("V", 64)),
        ),
        dtypes=_TRITON,
        triton=True,
    ),
}
