"""What is to be computed: one file per op on the normal form."""

from scancheck.errors import CaseInvalid
from scancheck.ops.delta_rule import DELTA_RULE
from scancheck.ops.gated_delta_product import GATED_DELTA_PRODUCT
from scancheck.ops.gated_delta_rule import GATED_DELTA_RULE
from scancheck.ops.gla import GLA
from scancheck.ops.kda import KDA
from scancheck.ops.lightning_attention import LIGHTNING_ATTENTION
from scancheck.ops.linear_attention import LINEAR_ATTENTION
from scancheck.ops.linear_scan import LINEAR_SCAN
from scancheck.ops.mlstm import MLSTM
from scancheck.ops.normal_form import Op
from scancheck.ops.normalized_linear_attention import NORMALIZED_LINEAR_ATTENTION
from scancheck.ops.retention import RETENTION
from scancheck.ops.rwkv6 import RWKV6
from scancheck.ops.rwkv7 import RWKV7
from scancheck.ops.selective_scan import SELECTIVE_SCAN
from scancheck.ops.simple_gla import SIMPLE_GLA
from scancheck.ops.ssd import SSD

OPS = {
    op.name: op
    for op in (
        LINEAR_SCAN,
        SELECTIVE_SCAN,
        LINEAR_ATTENTION,
        NORMALIZED_LINEAR_ATTENTION,
        SIMPLE_GLA,
        RETENTION,
        LIGHTNING_ATTENTION,
        GLA,
        RWKV6,
        SSD,
        DELTA_RULE,
        GATED_DELTA_RULE,
        GATED_DELTA_PRODUCT,
        KDA,
        RWKV7,
        MLSTM,
    )
}


def op_named(name: str) -> Op:
    """The registered op; raises CaseInvalid that lists the known ones."""
    if name not in OPS:
        raise CaseInvalid(f"op {name!r} is unknown; expected one of {', '.join(OPS)}")
    return OPS[name]
