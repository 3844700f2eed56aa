"""A user's own tensors are read as they are, or refused with one clear reason."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from scancheck.captured import (
    Captured,
    captured_inputs,
    in_words,
    measured_sizes,
    read_captured,
    storages_that_hold,
)
from scancheck.case import make_case
from scancheck.errors import CaseInvalid, RecordUnreadable, ScancheckError
from scancheck.formats import FORMATS, round_array

Tensors = dict[str, torch.Tensor]


def gates(**changes: torch.Tensor | None) -> Tensors:
    """Tensors of linear_scan, with some changed or left out."""
    found: dict[str, torch.Tensor | None] = {
        "g": -torch.rand(2, 24, 3),
        "b": torch.randn(2, 24, 3),
    }
    return {n: v for n, v in (found | changes).items() if v is not None}


def mamba(dtype: torch.dtype = torch.bfloat16) -> Tensors:
    """Tensors of selective_scan: sequences in a dtype, parameters in fp32."""
    return {
        "u": torch.randn(2, 6, 20).to(dtype),
        "delta": torch.rand(2, 6, 20).to(dtype),
        "A": -torch.rand(6, 4) - 0.5,
        "B": torch.randn(2, 3, 4, 20).to(dtype),
        "C": torch.randn(2, 3, 4, 20).to(dtype),
        "D": torch.ones(6),
    }


def stored(tmp_path: Path, tensors: Tensors, **about: object) -> str:
    """The path of a safetensors file."""
    path = tmp_path / "mine.safetensors"
    save_file(tensors, path, metadata={"scancheck": json.dumps(about)})
    return str(path)


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    read_captured.cache_clear()


def test_values_come_back_rounded_once(tmp_path: Path) -> None:
    """Each tensor is that of the file, in the format of the case."""
    tensors = gates()
    path = stored(tmp_path, tensors)
    for name in ("fp32", "bf16", "fp16"):
        case = make_case(
            "linear_scan", {"B": 2, "T": 24, "D": 3}, dtype=name, recipe="x", seed=0
        )
        inputs = captured_inputs(path, case)
        for key, tensor in tensors.items():
            wanted = round_array(FORMATS[name], tensor.double().numpy())
            assert np.array_equal(inputs.tensors[key], wanted)


def test_both_kinds_of_file_say_the_same(tmp_path: Path) -> None:
    """npz and safetensors of the same tensors give one form, sizes and values."""
    tensors = gates()
    one = read_captured(stored(tmp_path, tensors))
    np.savez(tmp_path / "mine.npz", **{n: t.numpy() for n, t in tensors.items()})
    two = read_captured(str(tmp_path / "mine.npz"))
    assert (one.op, one.form, one.sizes) == (two.op, two.form, two.sizes)
    assert one.sizes == {"B": 2, "T": 24, "D": 3}
    assert all(torch.equal(one.tensors[n], two.tensors[n]) for n in tensors)


@pytest.mark.parametrize(("stated", "expected"), [(None, False), (0, False), (1, True)])
def test_switches_are_metadata_or_a_number(
    tmp_path: Path, stated: int | None, expected: bool
) -> None:
    """delta_softplus comes from what `capture` writes, or from a tensor of its name."""
    about = {} if stated is None else {"switches": {"delta_softplus": bool(stated)}}
    found = read_captured(stored(tmp_path, mamba(), **about))
    assert found.switches == {"delta_softplus": expected}
    assert found.sizes == {"B": 2, "D": 6, "L": 20, "N": 4, "G": 3}
    arrays = {n: t.float().numpy() for n, t in mamba().items()}
    extra = {} if stated is None else {"delta_softplus": np.array(stated)}
    np.savez(tmp_path / "mine.npz", **arrays, **extra)
    again = read_captured(str(tmp_path / "mine.npz"))
    assert again.switches == {"delta_softplus": expected}


MISTAKES: list[tuple[str, Callable[[], Tensors], str]] = [
    (
        "nan",
        lambda: gates(b=torch.full((2, 24, 3), float("nan"))),
        "b: expected finite",
    ),
    (
        "infinity",
        lambda: gates(g=torch.full((2, 24, 3), float("-inf"))),
        "g: expected finite",
    ),
    ("integers", lambda: gates(b=torch.ones(2, 24, 3, dtype=torch.int32)), "int32"),
    ("shape", lambda: gates(b=torch.ones(2, 24, 4)), "D = 3 as g has; got shape"),
    ("rank", lambda: gates(b=torch.ones(24, 3)), r"expected \[B, T, D\]; got shape"),
    (
        "empty",
        lambda: gates(g=torch.ones(2, 0, 3), b=torch.ones(2, 0, 3)),
        "one element",
    ),
    ("both-forms", lambda: gates(a=torch.ones(2, 24, 3)), "exactly one of a or g"),
    ("unknown", lambda: gates(x=torch.ones(1)), "no input x; expected some of a, g, b"),
    ("missing", lambda: gates(b=None), "expected the inputs of an op"),
    ("nothing", lambda: {"q": torch.ones(1)}, "got q"),
    (
        "negative-step",
        lambda: mamba() | {"delta": -torch.ones(2, 6, 20)},
        "delta_softplus = 1",
    ),
]


@pytest.mark.parametrize(
    ("make", "message"), [pytest.param(m, t, id=i) for i, m, t in MISTAKES]
)
def test_unfit_tensors_are_named(
    tmp_path: Path, make: Callable[[], Tensors], message: str
) -> None:
    """Wrong names, shapes, dtypes and values: which tensor, what was expected."""
    path = stored(tmp_path, make())
    with pytest.raises(CaseInvalid, match=message) as told:
        read_captured(path)
    assert str(told.value).startswith(f"--inputs {path}: ")


def test_op_by_name_says_what_it_lacks(tmp_path: Path) -> None:
    """--op names the op where the file does not, and then what is missing."""
    path = stored(tmp_path, gates())
    with pytest.raises(CaseInvalid, match="selective_scan has no input"):
        read_captured(path, "selective_scan")
    with pytest.raises(CaseInvalid, match="op 'mamba' is unknown"):
        read_captured(path, "mamba")


def test_ops_that_no_report_knows_are_refused(tmp_path: Path) -> None:
    """Tensors of an op with heads are refused by its name, said or stored."""
    path = tmp_path / "x.safetensors"
    tensors = {n: torch.zeros(1, 4, 1, 2) for n in ("q", "k", "v")}
    words = "op gla: captured tensors cannot be measured yet; expected one of linear_"
    save_file(tensors, path)
    with pytest.raises(CaseInvalid, match=words):
        read_captured(str(path), "gla")
    save_file(tensors, path, metadata={"scancheck": json.dumps({"op": "gla"})})
    with pytest.raises(CaseInvalid, match=words):
        read_captured(str(path))


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    """An npz with a pickle in it is refused, and the pickle not loaded."""

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "executed",)  # type: ignore[return-value]

    path = tmp_path / "mine.npz"
    np.savez(path, g=np.array([Hostile()], dtype=object), b=np.ones(3))
    with pytest.raises(RecordUnreadable, match="not an npz file of plain arrays"):
        read_captured(str(path))
    raw = tmp_path / "raw.npz"
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("g.npy", pickle.dumps(Hostile()))
    with pytest.raises(ScancheckError):
        read_captured(str(raw))
    assert not (tmp_path / "executed").exists()


def test_a_bomb_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that unpacks to more than the limit is refused by its directory."""
    monkeypatch.setattr("scancheck.captured.LARGEST_FILE", 1000)
    np.savez_compressed(tmp_path / "mine.npz", g=np.zeros((1, 999, 1)))
    with pytest.raises(RecordUnreadable, match="expected at most 1000"):
        read_captured(str(tmp_path / "mine.npz"))


@pytest.mark.parametrize("name", ["mine.safetensors", "mine.npz"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"PK\x03\x04", b"\x00" * 64, struct.pack("<Q", 2**60) + b"{"],
)
def test_other_bytes(tmp_path: Path, name: str, content: bytes) -> None:
    """What is no such file gives one message, whatever its bytes."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecordUnreadable, match=r"not a|damaged"):
        read_captured(str(tmp_path / name))


def test_damaged_files(tmp_path: Path) -> None:
    """No cut or flipped byte gives anything but tensors or one of our messages."""
    buffer = io.BytesIO()
    np.savez(buffer, **{n: t.numpy() for n, t in gates().items()})
    safe = Path(stored(tmp_path, gates())).read_bytes()
    for name, whole in (("a.npz", buffer.getvalue()), ("a.safetensors", safe)):
        path = tmp_path / name
        for place in range(0, len(whole), 61):
            flipped = bytearray(whole)
            flipped[place] ^= 0xFF
            for content in (whole[:place], bytes(flipped)):
                path.write_bytes(content)
                read_captured.cache_clear()
                try:
                    read_captured(str(path))
                except ScancheckError:
                    continue


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", "does not exist"),
        (".", "is a folder"),
        ("a.pt", "expected a .safe"),
    ],
)
def test_other_paths(tmp_path: Path, name: str, message: str) -> None:
    """A path that cannot be one of the files says why."""
    (tmp_path / "a.pt").write_bytes(b"x")
    with pytest.raises(RecordUnreadable, match=message):
        read_captured(str(tmp_path / name))


def test_formats_that_would_overflow_are_left_out(tmp_path: Path) -> None:
    """A value beyond 65504 leaves fp16 out, and nothing else."""
    found = read_captured(stored(tmp_path, gates(b=torch.full((2, 24, 3), 1e5))))
    assert set(storages_that_hold(found)) == set(FORMATS) - {
        name for name, fmt in FORMATS.items() if fmt.largest < 1e5
    }
    assert "fp16" not in storages_that_hold(found)


@settings(max_examples=100, deadline=None, database=None, derandomize=True)
@given(
    batch=st.integers(1, 64),
    groups=st.integers(1, 4),
    each=st.integers(1, 512),
    steps=st.integers(1, 2**21),
    states=st.integers(1, 64),
)
def test_a_sweep_measures_a_bounded_part(
    batch: int, groups: int, each: int, steps: int, states: int
) -> None:
    """The part has all tokens, whole groups, and no more steps than it must."""
    whole = {"B": batch, "D": groups * each, "L": steps, "N": states, "G": groups}
    captured = Captured(
        path="x", op="selective_scan", form=None, sizes=whole, tensors={}, switches={}
    )
    part = measured_sizes(captured)
    assert {n: part[n] for n in "LNG"} == {n: whole[n] for n in "LNG"}
    assert part["D"] % groups == 0
    assert all(1 <= part[n] <= whole[n] for n in whole)
    least = steps * states * groups
    assert part["B"] * part["D"] * steps * states <= max(2**20, least)


def test_a_part_is_taken_evenly_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels of every group take part, and the page says how many."""
    monkeypatch.setattr("scancheck.captured.STEPS_LIMIT", 20 * 4 * 3)
    tensors = mamba(torch.float32)
    path = stored(tmp_path, tensors)
    captured = read_captured(path)
    sizes = measured_sizes(captured)
    assert (sizes["B"], sizes["D"]) == (1, 3)
    case = make_case("selective_scan", sizes, recipe="x", seed=0)
    inputs = captured_inputs(path, case)
    wanted = tensors["u"][:1, [0, 2, 4]].double().numpy()
    assert np.array_equal(inputs.tensors["u"], wanted)
    assert inputs.tensors["B"].shape == (1, 3, 4, 20)
    told = in_words(captured)
    assert "measured on 1 of 2 batch rows and 3 of 6 channels" in told
