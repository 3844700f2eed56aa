"""Contracts as text, TOML and keywords: one meaning, and one message per mistake."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scancheck.contract import (
    CHOICES,
    CONTRACT_FORMATS,
    Contract,
    ErrorModel,
    Structure,
    format_contract,
    parse_contract,
    resolve,
)
from scancheck.errors import CaseInvalid

FORMATS = sorted(CONTRACT_FORMATS)
COEFFICIENTS = st.floats(0.0, 1e6, exclude_max=True)
MODELS = st.builds(ErrorModel, e0=COEFFICIENTS, e1=COEFFICIENTS)
ORDERS = st.sampled_from(["sequential", "tree"])
STRUCTURES = st.one_of(
    st.builds(Structure, kind=st.sampled_from(["unknown", "sequential", "tree"])),
    st.builds(
        Structure,
        kind=st.just("chunk"),
        chunk=st.integers(1, 10**6),
        inner=ORDERS,
        carry=ORDERS,
    ),
    st.just(Structure(kind="tree", order="hillis_steele")),
    st.builds(
        Structure,
        kind=st.just("chunk"),
        chunk=st.integers(1, 10**6),
        order=st.just("stepwise"),
    ),
    st.builds(
        Structure,
        kind=st.just("chunk"),
        chunk=st.integers(1, 10**6),
        inner=st.just("tree"),
        order=st.just("hillis_steele"),
    ),
)
LIMITS = st.tuples(
    st.sampled_from(["a", "g", "delta"]),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
).filter(lambda row: row[1] <= row[2])


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    """Any contract that does not contradict itself."""
    structure = draw(STRUCTURES)
    log = draw(st.sampled_from(CHOICES["log"]))
    state = draw(st.sampled_from(["compute", "storage", *FORMATS]))
    comps = ["none"] if log != "none" else ["none", "kahan"]
    if log == "none" and structure.kind != "unknown":
        comps.append("full")
    ranges = ["products"] if log == "none" else ["products", "log"]
    if structure.kind not in ("tree", "chunk"):
        ranges.append("sequential")
    return Contract(
        compute=draw(st.sampled_from(["storage", *FORMATS])),
        state=state,
        state_every=1 if state == "compute" else draw(st.integers(1, 10**6)),
        structure=structure,
        fma=draw(st.sampled_from(CHOICES["fma"])),
        log=log,
        comp=draw(st.sampled_from(comps)),
        gradient_comp=draw(st.sampled_from(CHOICES["gradient_comp"])),
        exp=draw(MODELS),
        gradient_exp=draw(st.none() | MODELS),
        softplus=draw(MODELS),
        silu=draw(MODELS),
        ftz=draw(st.sampled_from(CHOICES["ftz"])),
        casts=tuple(
            draw(
                st.lists(
                    st.tuples(
                        st.sampled_from(["decay", "drive"]), st.sampled_from(FORMATS)
                    ),
                    max_size=2,
                    unique_by=lambda cast: cast[0],
                )
            )
        ),
        operands=draw(st.sampled_from(["compute", "storage", *FORMATS])),
        accumulate=draw(st.sampled_from(CHOICES["accumulate"])),
        heads=draw(st.sampled_from(CHOICES["heads"])),
        widths=draw(st.sampled_from([(), (("K", 16),), (("K", 16), ("V", 64))])),
        inverse=draw(st.sampled_from(CHOICES["inverse"])),
        range=draw(st.sampled_from(ranges)),
        domain=tuple(draw(st.lists(LIMITS, max_size=2, unique_by=lambda d: d[0]))),
    )


@given(contracts())
def test_text_round_trip(contract: Contract) -> None:
    """What `format_contract` writes, `parse_contract` reads back to the last bit."""
    assert parse_contract(format_contract(contract)) == contract


@given(contracts())
def test_toml_round_trip(contract: Contract) -> None:
    """The same keys with the same texts in a TOML file are the same contract."""
    text = format_contract(contract)
    pairs = [] if text == "default" else _pairs(text)
    written = "\n".join(f'{key} = "{value}"' for key, value in pairs)
    path = Path(_FOLDER[0]) / "contract.toml"
    path.write_text(written)
    assert parse_contract(str(path)) == contract


_FOLDER: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One folder for the files of all examples."""
    _FOLDER[:] = [str(tmp_path_factory.mktemp("contracts"))]


def _pairs(text: str) -> list[tuple[str, str]]:
    """Key and value of each field; commas inside parentheses belong to the value."""
    pairs, depth, start = [], 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            key, _, value = text[start:place].partition("=")
            pairs.append((key, value))
            start = place + 1
    return pairs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("default", {}),
        ("compute=bf16", {"compute": "bf16"}),
        ("compute=tf32", {"compute": "tf32"}),
        ("compute=storage", {"compute": "storage"}),
        ("state=fp16,state_every=64", {"state": "fp16", "state_every": 64}),
        ("structure=sequential", {"structure": Structure(kind="sequential")}),
        ("structure=tree", {"structure": Structure(kind="tree")}),
        ("structure=chunk(64)", {"structure": Structure(kind="chunk", chunk=64)}),
        (
            "structure = chunk(64, tree, sequential), fma = no",
            {"structure": Structure(kind="chunk", chunk=64, inner="tree"), "fma": "no"},
        ),
        (
            "structure=chunk(8,sequential,tree)",
            {"structure": Structure(kind="chunk", chunk=8, carry="tree")},
        ),
        (
            "structure=tree(hillis_steele)",
            {"structure": Structure(kind="tree", order="hillis_steele")},
        ),
        (
            "structure=chunk(8,sequential,sequential,stepwise)",
            {"structure": Structure(kind="chunk", chunk=8, order="stepwise")},
        ),
        ("log=diff,range=log", {"log": "diff", "range": "log"}),
        ("gate_gradient=reverse_cumsum", {"gate_gradient": "reverse_cumsum"}),
        ("constant_decay=exp", {"constant_decay": "exp"}),
        ("gradient_parts=storage", {"gradient_parts": "storage"}),
        ("gradient_state=storage", {"gradient_state": "storage"}),
        ("ln=2+6.1", {"ln": ErrorModel(e0=2.0, e1=6.1)}),
        (
            "comp=full,structure=tree",
            {"comp": "full", "structure": Structure(kind="tree")},
        ),
        (
            "comp=kahan,gradient_comp=none",
            {"comp": "kahan", "gradient_comp": "none"},
        ),
        ("gradient_exp=2.5+1x", {"gradient_exp": ErrorModel(e0=2.5, e1=1.0)}),
        ("exp=2", {"exp": ErrorModel(e0=2.0)}),
        ("exp=4+2.35x", {"exp": ErrorModel(e0=4.0, e1=2.35)}),
        ("softplus=1.5", {"softplus": ErrorModel(e0=1.5)}),
        ("silu=1+0x", {"silu": ErrorModel(e0=1.0)}),
        ("ftz=yes", {"ftz": "yes"}),
        (
            "casts=decay:bf16+drive:fp16",
            {"casts": (("decay", "bf16"), ("drive", "fp16"))},
        ),
        ("range=sequential", {"range": "sequential"}),
        (
            "domain=g:-5:0+b:-1e3:1e20",
            {"domain": (("g", -5.0, 0.0), ("b", -1e3, 1e20))},
        ),
        ("domain=g:-inf:0", {"domain": (("g", -math.inf, 0.0),)}),
        ("operands=tf32", {"operands": "tf32"}),
        ("accumulate=truncate", {"accumulate": "truncate"}),
        ("heads=one_to_one", {"heads": "one_to_one"}),
        ("widths=K:16+V:8", {"widths": (("K", 16), ("V", 8))}),
        ("inverse=neumann", {"inverse": "neumann"}),
    ],
)
def test_every_key_parses(text: str, expected: dict[str, Any]) -> None:
    """Each key of semantics.md is read as its field, blanks or not."""
    assert parse_contract(text) == Contract(**expected)


def test_every_key_is_covered_above() -> None:
    """No field of a contract lacks an example that reads it from text."""
    examples = test_every_key_parses.pytestmark[0].args[1]  # type: ignore[attr-defined]
    read = {name for _, expected in examples for name in expected}
    assert read == {field.name for field in fields(Contract)}


def test_default_is_the_first_of_every_list() -> None:
    """The default contract is the one that semantics.md lists first."""
    assert format_contract(Contract()) == "default"
    assert format_contract(parse_contract("compute=fp32,fma=allowed")) == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("compute=fp12", ["compute", "fp12", "bf16", "storage", "tf32"]),
        ("state=half", ["state", "half", "compute", "storage", "fp16"]),
        ("state=bf16,state_every=0", ["state_every", "at least 1", "0"]),
        ("state=bf16,state_every=often", ["state_every", "often", "state_every=64"]),
        ("structure=ring", ["structure", "ring", "sequential", "tree", "chunk"]),
        ("structure=chunk", ["structure", "chunk", "size", "None"]),
        ("structure=tree(8)", ["structure", "tree", "8"]),
        ("structure=chunk(0)", ["structure", "at least 1", "0"]),
        ("structure=chunk(8,ring)", ["structure", "ring", "sequential or tree"]),
        ("structure=chunk(8,tree,ring)", ["structure", "ring", "sequential or tree"]),
        ("structure=chunk(8,tree,tree,tree)", ["structure", "stepwise", "'tree'"]),
        ("structure=chunk(8,tree,tree,any,any)", ["structure", "at most four"]),
        ("structure=tree(stepwise)", ["tree(hillis_steele)", "got tree(stepwise)"]),
        (
            "structure=chunk(8,tree,tree,hillis_steele)",
            ["chunk(C,tree,sequential,hillis_steele)", "got chunk(8,tree,tree,"],
        ),
        (
            "structure=chunk(8,sequential,sequential,hillis_steele)",
            ["chunk(C,sequential,sequential,stepwise)", "got chunk(8,sequential,"],
        ),
        ("structure=chunk(many)", ["structure", "many", "chunk(64"]),
        ("structure=chunk(8", ["structure", "chunk(8"]),
        ("fma=maybe", ["fma", "maybe", "allowed, yes, no"]),
        ("log=half", ["log", "half", "none, diff, segsum"]),
        ("comp=some", ["comp", "some", "none, kahan, full"]),
        ("exp=small", ["exp", "small", "exp=4+2.35x"]),
        ("exp=-1", ["exp", "-1", "0 .. 1e6"]),
        ("exp=nan", ["exp", "nan", "0 .. 1e6"]),
        ("softplus=1e9", ["softplus", "1000000000", "0 .. 1e6"]),
        ("silu=4+inf", ["silu", "inf", "0 .. 1e6"]),
        ("ftz=perhaps", ["ftz", "perhaps", "either, yes, no"]),
        ("casts=gate:bf16", ["casts", "gate:bf16", "decay, drive"]),
        ("casts=decay:half", ["casts", "decay:half", "bf16"]),
        ("casts=decay", ["casts", "decay", "POINT:FORMAT"]),
        ("range=wide", ["range", "wide", "products, sequential, log"]),
        ("domain=g:0", ["domain", "g:0", "domain=g:-5:0"]),
        ("domain=g:low:0", ["domain", "low", "domain=g:-5:0"]),
        ("domain=g:5:-5", ["domain", "g", "5", "-5"]),
        ("domain=g:nan:1", ["domain", "g", "nan"]),
        ("domain=g:-5:0+g:-9:0", ["domain", "g", "twice"]),
        ("casts=decay:bf16+decay:fp16", ["casts", "decay", "twice"]),
        ("speed=high", ["speed", "unknown", "compute", "domain"]),
        ("bf16", ["key=value", "bf16"]),
        ("compute=bf16,compute=fp16", ["compute", "twice"]),
    ],
)
def test_a_mistake_names_argument_expected_and_got(text: str, words: list[str]) -> None:
    """One line says which key is wrong, what may stand there, and what stood there."""
    with pytest.raises(CaseInvalid) as caught:
        parse_contract(text)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("comp=full", ["comp=full", "structure"]),
        ("comp=kahan,log=diff", ["comp", "log"]),
        ("comp=full,structure=tree,log=segsum", ["comp", "log"]),
        ("range=log", ["range=log", "log=none"]),
        ("range=sequential,structure=tree", ["range=sequential", "structure=tree"]),
        ("range=sequential,structure=chunk(8)", ["range=sequential", "structure"]),
        ("state_every=8", ["state_every=8", "state=compute"]),
    ],
)
def test_a_contradiction_names_both_sides(text: str, sides: list[str]) -> None:
    """A contract that contradicts itself is refused with both of its sides."""
    with pytest.raises(CaseInvalid) as caught:
        parse_contract(text)
    message = str(caught.value)
    assert "contradicts itself" in message
    assert [side for side in sides if side not in message] == []


def test_keywords_are_checked_as_text_is() -> None:
    """`Contract(...)` and `replace` refuse what the command line refuses."""
    with pytest.raises(CaseInvalid, match="compute"):
        Contract(compute="fp12")
    with pytest.raises(CaseInvalid, match="contradicts itself"):
        replace(Contract(), range="log")


def test_toml_values_may_be_numbers(tmp_path: Path) -> None:
    """TOML integers and floats are read as their text would be."""
    path = tmp_path / "kernel.toml"
    path.write_text('state = "bf16"\nstate_every = 64\nexp = 2.5\n')
    expected = Contract(state="bf16", state_every=64, exp=ErrorModel(e0=2.5))
    assert parse_contract(str(path)) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["cannot be read"]),
        ("compute: bf16", ["not TOML"]),
        ('speed = "high"', ["speed", "unknown", "compute"]),
        ("compute = 16", ["compute", "16"]),
        ("compute = true", ["compute", "True"]),
        ("structure = [1, 2]", ["structure", "1", "chunk(64"]),
        ('[contract]\ncompute = "bf16"', ["contract", "unknown"]),
    ],
)
def test_a_bad_toml_file_is_named(
    tmp_path: Path, content: str | None, words: list[str]
) -> None:
    """A file that is missing, no TOML or holds a bad key gives one clear message."""
    path = tmp_path / "kernel.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CaseInvalid) as caught:
        parse_contract(str(path))
    message = str(caught.value)
    assert [word for word in words if word not in message] == []


def test_a_toml_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a usage error, not a traceback."""
    path = tmp_path / "kernel.toml"
    path.write_bytes(b"\xff\xfe\x00compute")
    with pytest.raises(CaseInvalid, match="not TOML"):
        parse_contract(str(path))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("compute", ["storage", *FORMATS])
@pytest.mark.parametrize("state", ["compute", "storage", *FORMATS])
def test_resolve_gives_format_names(dtype: str, compute: str, state: str) -> None:
    """`storage` is the case's dtype, `compute` the compute format, a name itself."""
    contract = Contract(compute=compute, state=state, operands=state)
    resolved = resolve(contract, dtype)
    wanted = dtype if compute == "storage" else compute
    if dtype == "fp64" and compute == "fp32":
        wanted = "fp64"  # an fp64 case is not judged by fp32 arithmetic
    assert resolved.compute == wanted
    names = {"compute": wanted, "storage": dtype}
    assert resolved.state == resolved.operands == names.get(state, state)


@given(contracts(), st.sampled_from(["fp16", "bf16", "fp32", "fp64"]))
def test_resolve_keeps_the_rest(contract: Contract, dtype: str) -> None:
    """Resolving never fails, is idempotent and touches names of formats alone."""
    resolved = resolve(contract, dtype)
    assert resolve(resolved, dtype) == resolved
    formats = {n: getattr(contract, n) for n in ("compute", "state", "operands")}
    assert replace(resolved, **formats) == contract
