"""The models as registered kernels: names, contracts and what they take."""

import inspect
import subprocess
import sys

import pytest

from scancheck.contract import format_contract, parse_contract, resolve
from scancheck.errors import CaseInvalid
from scancheck.kernel import Kernel
from scancheck.kernels.models.catalog import (
    ALGORITHMS,
    LOG_FORMS,
    SCANS,
    VARIANTS,
    model,
    models,
)
from scancheck.kernels.models.chunk_catalog import GATES, RANK_ONE, chunk_model
from scancheck.kernels.models.step_calls import FAMILIES
from scancheck.ops import OPS
from scancheck.ops.calling import ARGUMENTS

TAKING = ("sequential.plain", "chunk64.plain")  # several sequences in one call


def name_of(kernel: Kernel) -> str:
    """What a parametrised test calls a kernel."""
    return kernel.name


def test_names_are_unique() -> None:
    """No two models share a name, and each begins with its op's."""
    names = [kernel.name for kernel in models()]
    assert len(set(names)) == len(names)
    assert all(k.name.startswith(f"model.{k.op}.") for k in models())


@pytest.mark.parametrize("op", SCANS)
def test_every_combination_is_registered(op: str) -> None:
    """Each algorithm comes plain, with kahan and with full compensation."""
    names = {kernel.name for kernel in models()}
    for shape in ("sequential", "hillis_steele", "chunk64", "chunk64_tree"):
        for variant in ("plain", "kahan", "full"):
            assert f"model.{op}.{shape}.{variant}" in names
    for shape in (
        "blelloch",
        "chunk64_warps",
        "chunk64_carry_tree",
        "single_pass64",
        "single_pass64_warps",
    ):
        assert f"model.{op}.{shape}.plain" in names
    for form in ("diff", "segsum", "factored", "ratio", "renorm"):
        for shape in ("chunk64", "chunk64_tree"):
            assert f"model.{op}.{shape}.log_{form}" in names
    for shape in ("sequential", "hillis_steele"):
        assert f"model.{op}.{shape}.log_full" in names
    for shape in ("sequential", "hillis_steele", "chunk64"):
        assert f"model.{op}.{shape}.plain.compute_storage" in names


@pytest.mark.parametrize("op", FAMILIES)
def test_every_op_in_step_form_is_registered(op: str) -> None:
    """Each has its sequential model, with required and optional inputs as the op has.

    It takes the initial state in the op's layout under the op's name.
    """
    (kernel,) = (k for k in models() if k.name == f"model.{op}.sequential.plain")
    assert {"fp16", "bf16", "fp32"} <= set(kernel.dtypes)
    parameters = inspect.signature(kernel.call).parameters
    for spec in OPS[op].inputs:
        assert (parameters[spec.name].default is None) == (not spec.required)
        by_time = spec.axes[:2] == ("B", "T")
        assert by_time == (spec.name in FAMILIES[op].sequences)
    assert FAMILIES[op].state == OPS[op].state


@pytest.mark.parametrize("op", GATES)
def test_every_op_is_registered_in_chunks(op: str) -> None:
    """With its inverses where it has one, operands of its own, and two levels."""
    names = {kernel.name for kernel in models() if ".chunk64" in kernel.name}
    variant = "plain" if GATES[op] == "none" or op == "retention" else "log_diff"
    assert f"model.{op}.chunk64.{variant}" in names
    if op in RANK_ONE:
        for inverse in ("block", "neumann", "block.operands_storage"):
            assert f"model.{op}.chunk64.{variant}.inverse_{inverse}" in names
    if op in ("gla", "rwkv6", "kda"):
        assert f"model.{op}.chunk64_blocks16.log_diff" in names


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_contract_says_what_is_computed(algorithm: str, variant: str) -> None:
    """Structure, log form, compensation and range follow from the combination."""
    if algorithm not in LOG_FORMS.get(variant, tuple(ALGORITHMS)):
        with pytest.raises(CaseInvalid, match=f"{variant} is computed with"):
            model("linear_scan", algorithm, variant)
        return
    contract = model("linear_scan", algorithm, variant, chunk=8).contract
    assert contract is not None
    structure = contract.structure
    chunked = algorithm.startswith(("chunk", "single_pass"))
    assert structure.chunk == (8 if chunked else None)
    assert (structure.carry == "tree") == algorithm.endswith("carry_tree")
    inside = algorithm.removesuffix("_carry_tree")
    tree = inside.endswith(("_tree", "_warps")) and structure.kind == "chunk"
    assert structure.inner == ("tree" if tree else "sequential")
    assert contract.log == (variant[4:] if variant in LOG_FORMS else "none")
    assert contract.comp == (variant if variant in ("kahan", "full") else "none")
    assert (contract.range == "log") == (
        variant in LOG_FORMS and variant != "log_ratio"
    )


@pytest.mark.parametrize("kernel", models(), ids=name_of)
def test_contract_holds_together(kernel: Kernel) -> None:
    """A contract resolves for every declared dtype and survives being written down."""
    assert kernel.contract is not None
    for dtype in kernel.dtypes:
        assert resolve(kernel.contract, dtype).compute != "storage"
    assert parse_contract(format_contract(kernel.contract)) == kernel.contract


@pytest.mark.parametrize("kernel", models(), ids=name_of)
def test_signature_names_the_ops_inputs(kernel: Kernel) -> None:
    """The parameters are the op's tensors and switches; log forms have no `a`.

    Some models also take several sequences in one call.
    """
    op = OPS[kernel.op]
    expected = {spec.name for spec in op.inputs} | set(op.switches)
    if ".log_" in kernel.name and kernel.op in SCANS:
        expected.discard("a")
    if ".chunk" in kernel.name:
        expected.discard("gv")  # chunks of products have gates of keys alone
    parameters = inspect.signature(kernel.call).parameters
    called = ".chunk" not in kernel.name
    if kernel.op in SCANS:
        called = kernel.name.split(".", 2)[2] in TAKING
    assert set(parameters) == expected | (set(ARGUMENTS) if called else set())
    kinds = {p.kind for p in parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "model.linear_scan.chunk16.plain"),
        ({"compute": "bf16"}, "model.linear_scan.chunk16.plain.compute_bf16"),
        ({"state": "fp16"}, "model.linear_scan.chunk16.plain.state_fp16"),
    ],
)
def test_options_are_in_the_name(options: dict[str, str], name: str) -> None:
    """A model of other options has another name and its chunk at hand."""
    kernel = model("linear_scan", "chunk", "plain", chunk=16, **options)  # type: ignore[arg-type]
    assert kernel.name == name
    assert kernel.chunk == 16
    assert kernel.contract is not None
    assert kernel.contract.structure.chunk == 16
    assert kernel.contract.state_every == (16 if "state" in options else 1)


def test_sequential_state_in_the_name() -> None:
    """How often a sequential state is stored is part of its name and contract."""
    kernel = model("linear_scan", "sequential", "plain", state="bf16", state_every=8)
    assert kernel.name == "model.linear_scan.sequential.plain.state_bf16.every_8"
    assert kernel.contract is not None
    assert kernel.contract.state_every == 8


def test_narrow_computation_takes_its_own_dtype_only() -> None:
    """A model declares the formats whose every value its computation holds.

    Computed in the storage format, that is one of at least 16 bits.
    """
    eighths = ("fp8_e4m3", "fp8_e5m2")

    def dtypes(compute: str) -> tuple[str, ...]:
        return model("linear_scan", "chunk", "full", compute=compute).dtypes

    assert dtypes("fp16") == (*eighths, "fp16")
    assert dtypes("bf16") == (*eighths, "bf16")
    assert dtypes("fp32")[:5] == (*eighths, "fp16", "bf16", "fp32")
    assert dtypes("storage")[:3] == ("fp16", "bf16", "fp32")
    rounded = chunk_model("ssd", "log_diff", operands="storage")
    assert rounded.dtypes == ("fp16", "bf16", "fp32")


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("linear", "chunk", "plain"), {}, "model op: expected one of linear_scan"),
        (("linear_scan", "tree", "plain"), {}, "model algorithm: expected one of"),
        (("linear_scan", "chunk", "best"), {}, "model variant: expected one of plain"),
        (("linear_scan", "chunk", "plain"), {"compute": "fp8"}, "model compute"),
        (("linear_scan", "chunk", "plain"), {"state": "fp8"}, "model state"),
        (("linear_scan", "chunk", "plain"), {"chunk": 0}, "at least 1; got 0"),
        (
            ("linear_scan", "sequential", "log_diff"),
            {},
            "algorithm chunk or chunk_tree; got 'sequential'",
        ),
        (
            ("linear_scan", "sequential", "log_full"),
            {"state": "bf16"},
            "sequential with log_full carries no state",
        ),
        (("linear_scan", "hillis_steele", "plain"), {"state": "bf16"}, "no state"),
        (
            ("gla", "chunk", "plain"),
            {},
            "gla is computed with algorithm sequential and variant plain, or in chunks",
        ),
        (
            ("linear_scan", "chunk", "plain"),
            {"state": "bf16", "state_every": 3},
            "every 64 steps; got 3",
        ),
        (
            ("linear_scan", "sequential", "plain"),
            {"state_every": 3},
            "state_every=3 against state=compute",
        ),
    ],
)
def test_impossible_models_are_refused(
    arguments: tuple[str, str, str], options: dict[str, object], said: str
) -> None:
    """An unknown name or a combination that does not exist is a clear usage error."""
    with pytest.raises(CaseInvalid, match=said.replace("(", r"\(")):
        model(*arguments, **options)  # type: ignore[arg-type]


def test_catalog_does_not_import_torch() -> None:
    """Listing the models loads neither torch nor numba."""
    code = (
        "import sys; from scancheck.kernels.models.catalog import models; models(); "
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
