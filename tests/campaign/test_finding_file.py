"""Findings in files: whole and the same after reading, and one reason otherwise."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from scancheck.campaign import finding_file
from scancheck.campaign.finding_file import (
    KEY,
    StoredFinding,
    read_finding,
    write_finding,
)
from scancheck.case import make_case
from scancheck.contract import parse_contract
from scancheck.errors import RecordUnreadable
from scancheck.recipes.build import build
from scancheck.recipes.inputs import cotangents
from scancheck.record import Finding


def stored(op: str = "linear_scan", dtype: str = "bf16") -> StoredFinding:
    """A finding of an op with all its tensors."""
    sizes = {"B": 2, "T": 5, "D": 3}
    options: dict[str, Any] = {"form": "g", "initial_state": True}
    if op == "selective_scan":
        sizes = {"B": 2, "L": 5, "D": 4, "N": 3, "G": 2}
        options = {"keys": "grouped", "initial_state": True}
    case = make_case(
        op, sizes, dtype=dtype, recipe="gaussian_slow", seed=7, options=options
    )
    finding = Finding(
        check="oracle",
        verdict="FAIL",
        tensor="h",
        ratio=31.25,
        rho=None,
        first_wrong_index=(0, 4, 2),
        place={"token": 4, "chunk": 1, "position": 0, "where": "carry"},
        cause="carry",
        reason="wrong. Likely cause: the carry",
        advice="look",
        case={"op": op},
        case_id="",
        file="somewhere",
        replay="scancheck replay somewhere",
        values=("got=0x1p+0 (1)",),
    )
    return StoredFinding(
        target="control.linear_scan.chunked_reference",
        contract=parse_contract("compute=bf16,structure=tree"),
        gradients=True,
        case=case,
        cotangent_kind="dense",
        inputs=build(case),
        cotangents=cotangents(case, "dense", 3),
        finding=finding,
        key="carry",
        campaign={"seed": 5, "profile": "quick"},
        environment={"numpy": "2"},
    )


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("op", ["linear_scan", "selective_scan"])
def test_what_is_read_is_what_was_written(tmp_path: Path, op: str, dtype: str) -> None:
    """Tensors come back to the bit, in their formats, with everything said of them."""
    before = stored(op, dtype)
    path = tmp_path / "finding.safetensors"
    write_finding(before, path)
    after = read_finding(path)
    for name in ("target", "contract", "case", "cotangent_kind", "key", "campaign"):
        assert getattr(after, name) == getattr(before, name)
    assert after.inputs.switches == before.inputs.switches
    assert list(after.inputs.tensors) == list(before.inputs.tensors)
    for name, values in before.inputs.tensors.items():
        assert np.array_equal(after.inputs.tensors[name], values)
    assert after.cotangents is not None and before.cotangents is not None
    for name, values in before.cotangents.items():
        assert np.array_equal(after.cotangents[name], values)
    for name in ("verdict", "cause", "place", "first_wrong_index", "values", "ratio"):
        assert getattr(after.finding, name) == getattr(before.finding, name)


def packed() -> StoredFinding:
    """A finding of a call of three sequences."""
    case = make_case(
        "simple_gla",
        {"B": 1, "T": 9, "H": 1, "HV": 2, "K": 3, "V": 2},
        recipe="gaussian_slow",
        seed=7,
        options={"initial_state": True, "cu_seqlens": (0, 4, 4, 9), "reverse": True},
    )
    bars = cotangents(case, "dense", 3)
    return replace(stored(), case=case, inputs=build(case), cotangents=bars)


def test_sequences_of_a_call_are_stored(tmp_path: Path) -> None:
    """Offsets come back as they were, and states have one entry a sequence."""
    path = tmp_path / "finding.safetensors"
    write_finding(packed(), path)
    after = read_finding(path)
    assert after.case == packed().case
    assert after.inputs.tensors["initial_state"].shape == (3, 2, 3, 2)
    for name, values in packed().inputs.tensors.items():
        assert np.array_equal(after.inputs.tensors[name], values)


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ((0, 4, 4, 8), "number of tokens, 9; got 8"),
        ((0, 4, 3, 9), "do not decrease; got 4 and then 3"),
        ((0, 9), r"_state: expected shape \[1, 2, 3, 2\]"),
        ((0, -4, 9), "case is not one that scancheck writes"),
    ],
)
def test_offsets_that_do_not_fit_are_told(
    tmp_path: Path, offsets: tuple[int, ...], reason: str
) -> None:
    """Sequences of a file are checked like everything else in it."""
    path = tmp_path / "finding.safetensors"
    whole = packed()
    options = dict(whole.case.options) | {"cu_seqlens": offsets}
    odd = replace(whole.case, options=tuple(sorted(options.items())))
    write_finding(replace(whole, case=odd), path)
    with pytest.raises(RecordUnreadable, match=reason):
        read_finding(path)


@pytest.mark.parametrize(
    ("campaign", "profile"),
    [
        ({"drawn": {"recipe": "mamba_initialisation"}}, "realistic"),
        ({"drawn": {"recipe": "long_gone"}}, None),
        ({"drawn": {"recipe": ["gaussian_slow"]}}, None),
        ({"drawn": "gaussian_slow"}, "adversarial"),
        ({}, "adversarial"),
    ],
)
def test_the_profile_is_that_of_the_recipe_that_was_drawn(
    tmp_path: Path, campaign: dict[str, Any], profile: str | None
) -> None:
    """Also in a file that does not say it; the case's own where none was drawn."""
    path = tmp_path / "finding.safetensors"
    content = put("campaign", campaign)
    path.write_bytes(content)
    assert read_finding(path).finding.profile == profile


def test_the_header_tells_a_reader_without_scancheck(tmp_path: Path) -> None:
    """Op, dtype, contract, verdict, cause and versions stand in the JSON by name."""
    path = tmp_path / "finding.safetensors"
    write_finding(stored(), path)
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    data = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KEY])
    assert data["op"] == "linear_scan" and data["dtype"] == "bf16"
    assert data["contract"] == "compute=bf16,structure=tree"
    assert data["verdict"] == "FAIL" and data["cause"] == "carry"
    assert data["campaign"]["seed"] == 5
    assert data["scancheck"] and data["environment"]


def with_header(header: bytes, rest: bytes = b"") -> bytes:
    """A file with this header."""
    return struct.pack("<Q", len(header)) + header + rest


def changed(change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> bytes:
    """A whole safetensors file whose JSON and tensors were changed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finding"
        write_finding(stored(), path)
        content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    data = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KEY])
    from safetensors.torch import load

    tensors = load(content)
    change(data, tensors)
    return save(tensors, {KEY: json.dumps(data)})


def put(place: str, value: Any) -> bytes:
    """A file with another value at a place of its JSON."""

    def change(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        *parents, last = place.split(".")
        for parent in parents:
            data = data[parent]
        data[last] = value

    return changed(change)


def tensor(name: str, values: torch.Tensor | None) -> bytes:
    """A file with another tensor of a name, or without it."""

    def change(data: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        if values is None:
            del tensors[name]
        else:
            tensors[name] = values

    return changed(change)


HUGE = {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}
NAN_TEXT = '{"schema": NaN}'
HOSTILE = {
    "empty": (lambda: b"", "empty or cut off"),
    "cut off in the length": (lambda: b"\x01\x00", "empty or cut off"),
    "text": (lambda: b'{"schema_version": 1}', "header claims"),
    "length lies": (lambda: struct.pack("<Q", 2**62) + b"{}", "header claims"),
    "length beyond the file": (lambda: struct.pack("<Q", 99) + b"{}", "header claims"),
    "no json": (lambda: with_header(b"\x80\x04pickle."), "is no JSON"),
    "deep json": (lambda: with_header(b"[" * 200_000), "is no JSON"),
    "no object": (lambda: with_header(b"[1]"), "no JSON object"),
    "foreign": (lambda: save({"weight": torch.ones(2)}), f"no {KEY}"),
    "nan in json": (
        lambda: with_header(json.dumps({"__metadata__": {KEY: NAN_TEXT}}).encode()),
        "NaN is no JSON number",
    ),
    "huge shape": (
        lambda: with_header(
            json.dumps({"__metadata__": {KEY: "{}"}, "input.b": HUGE}).encode()
        ),
        "tensors cannot be read",
    ),
    "other schema": (lambda: put("schema", 99), "expected schema 1; got 99"),
    "no target": (lambda: put("target", 3), "text as target"),
    "unknown op": (lambda: put("case.op", "../../etc"), "expected a case of"),
    "unknown dtype": (lambda: put("case.dtype", "int8"), "its case"),
    "odd sizes": (lambda: put("case.sizes.T", "5"), "its case"),
    "negative size": (lambda: put("case.sizes.T", -5), "its case"),
    "other size": (lambda: put("case.sizes.T", 6), "expected shape [2, 6, 3]"),
    "unknown size": (lambda: put("case.sizes.X", 6), "its case"),
    "bad contract": (lambda: put("contract", "compute=fp3"), "contract compute"),
    "bad switch": (lambda: put("switches", {"os.system": True}), "switches"),
    "bad cotangents": (lambda: put("cotangent_kind", ["dense"]), "cotangent_kind"),
    "no finding": (lambda: put("finding", None), "expected a finding"),
    "finding without verdict": (lambda: put("finding.verdict", 1), "verdict"),
    "unknown verdict": (lambda: put("finding.verdict", "GREAT"), "verdict"),
    "path as name": (lambda: tensor("../../x", torch.ones(1)), "no tensor"),
    "other tensor": (
        lambda: tensor("input.weights", torch.ones(1)),
        "no tensor 'weights'",
    ),
    "output as input": (
        lambda: tensor("input.h", torch.ones(2, 5, 3, dtype=torch.bfloat16)),
        "does not have",
    ),
    "wrong dtype": (lambda: tensor("input.b", torch.ones(2, 5, 3)), "expected bf16"),
    "wrong shape": (
        lambda: tensor("input.b", torch.ones(2, 5, dtype=torch.bfloat16)),
        "axes",
    ),
    "nan value": (
        lambda: tensor("input.b", torch.full((2, 5, 3), torch.nan).bfloat16()),
        "NaN",
    ),
    "missing tensor": (lambda: tensor("input.b", None), "input.b is missing"),
    "no form": (lambda: tensor("input.g", None), "one form"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gives_one_reason(tmp_path: Path, name: str) -> None:
    """Whatever is wrong, one line says what, with the file's name, and nothing else."""
    make, reason = HOSTILE[name]
    path = tmp_path / "finding.safetensors"
    path.write_bytes(make())
    with pytest.raises(RecordUnreadable) as caught:
        read_finding(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert reason in text
    assert "\n" not in text
    assert len(text) < 500


def test_every_truncation_gives_one_reason(tmp_path: Path) -> None:
    """A file cut off anywhere is refused."""
    path = tmp_path / "finding.safetensors"
    write_finding(stored(), path)
    content = path.read_bytes()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(RecordUnreadable):
            read_finding(path)


def test_a_flipped_byte_gives_a_reason_or_a_finding(tmp_path: Path) -> None:
    """No damage raises anything else."""
    path = tmp_path / "finding.safetensors"
    write_finding(stored(), path)
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 23):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        try:
            found = read_finding(path)
        except RecordUnreadable:
            continue
        assert isinstance(found, StoredFinding)


def test_a_large_file_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by the limit, also for a file that holds nothing."""
    path = tmp_path / "finding.safetensors"
    with path.open("wb") as stream:
        stream.truncate(finding_file.MOST_BYTES + 1)
    with pytest.raises(RecordUnreadable, match="expected at most"):
        read_finding(path)
    monkeypatch.setattr(finding_file, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="bytes"):
        write_finding(stored(), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_missing_files_and_folders_give_a_reason(tmp_path: Path) -> None:
    """What is not there, or no file, is told as such."""
    with pytest.raises(RecordUnreadable, match="no such file"):
        read_finding(tmp_path / "missing")
    with pytest.raises(RecordUnreadable, match="is no file"):
        read_finding(tmp_path)


def test_values_without_their_format_are_not_written(tmp_path: Path) -> None:
    """A value that bf16 lacks is a mistake of the writer, and no file is left."""
    wrong = stored()
    wrong.inputs.tensors["b"] = wrong.inputs.tensors["b"] + 2.0**-40
    with pytest.raises(ValueError, match="expected values of bf16"):
        write_finding(replace(wrong), tmp_path / "finding")
    assert list(tmp_path.iterdir()) == []
