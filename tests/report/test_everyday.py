"""A newcomer who reads the first lines knows which format and chunk to use."""

from collections.abc import Callable
from itertools import product

from scancheck.recipes.regimes import REGIMES
from scancheck.report.everyday import accuracies, everyday, sentences
from scancheck.study.row import Row

MakeRow = Callable[..., Row]
LENGTHS = (2048, 65536)


def regime_rows(made_up: MakeRow, **errors: float) -> list[Row]:
    """Rows of all gates, lengths and ops; errors of plain, state and arithmetic."""
    ways = (
        ("bf16", "fp32", "fp32", 1.7e-3, 1.7e-3),
        ("bf16", "fp32", "bf16", errors.get("state", 1.7e-2), 1.7e-3),
        ("bf16", "bf16", "bf16", errors.get("arithmetic", 1.7e-1), 1.7e-3),
        ("fp32", "fp32", "fp32", 1e-6, 3e-8),
    )
    return [
        made_up(
            section="regime",
            op=op,
            recipe=recipe,
            T=length,
            chunk=chunk,
            storage=storage,
            compute=compute,
            state=state,
            rms_rel=error,
            floor_rel=floor,
            values=1000,
        )
        for op, recipe, length, chunk, (
            storage,
            compute,
            state,
            error,
            floor,
        ) in product(
            ("linear_scan", "selective_scan"), REGIMES, LENGTHS, (64, 256), ways
        )
    ]


def test_one_choice_is_said_outright(made_up: MakeRow) -> None:
    """Format, arithmetic, state and chunk for all gates, lengths and ops."""
    text = " ".join(sentences(regime_rows(made_up)))
    assert "store in bf16, compute in fp32, keep the state in fp32" in text
    assert "in chunks of 256" in text
    for words in (
        "slow gate (0.9999)",
        "Mamba's defaults",
        "strong gate (log -5)",
        "2048 and 65\u202f536 tokens",
        "linear_scan and selective_scan",
    ):
        assert words in text
    assert "bf16 state has up to 10 times the error of storing" in text
    assert "bf16 arithmetic has up to 100 times" in text
    assert "fp32 1.0e-6" in text


def test_every_gate_has_its_own_line(made_up: MakeRow) -> None:
    """The table names gate, lengths, chunks that hold, what fails, and the evidence."""
    lines = everyday(regime_rows(made_up))
    assert [line.gate for line in lines] == [r.title for r in REGIMES.values()]
    for line in lines:
        assert line.lengths == LENGTHS
        assert line.chunks == (64, 256)
        assert (line.cases, line.values) == (4, 4000)
        assert line.fails == {
            "bf16, bf16 state": "10 times storing",
            "bf16, bf16 arithmetic": "100 times storing",
        }


def test_gates_that_differ_are_told_apart(made_up: MakeRow) -> None:
    """Where a bf16 state holds for one gate alone, it is the cheapest there alone."""
    rows = [
        row
        if (row.recipe, row.state, row.compute)
        != ("regime_strong_gate", "bf16", "fp32")
        else made_up(**(_fields(row) | {"rms_rel": 1.8e-3}))
        for row in regime_rows(made_up)
    ]
    strong = next(text for text in sentences(rows) if text.startswith("Strong gate"))
    assert "keep the state in bf16" in strong
    slow = next(text for text in sentences(rows) if text.startswith("Slow gate"))
    assert "keep the state in fp32" in slow
    assert "Mamba's defaults" in slow


def _fields(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in Row.__dataclass_fields__}


def test_a_red_verdict_holds_nowhere(made_up: MakeRow) -> None:
    """A way that fails is named with its verdict, and never advised."""
    rows = [
        made_up(**(_fields(row) | {"verdict": "FAIL"}))
        if row.state == "fp32" and row.storage == "bf16"
        else row
        for row in regime_rows(made_up)
    ]
    for line in everyday(rows):
        assert line.fails["bf16"] == "FAIL"
        assert "store in bf16" not in line.use
    assert "store in bf16, compute in fp32, keep the state in fp32" not in " ".join(
        sentences(rows)
    )


def test_every_accuracy_has_its_cheapest_way(made_up: MakeRow) -> None:
    """1e-2 is reached by bf16, 1e-6 by fp32, what fp32 allows by nothing measured."""
    for line in accuracies(regime_rows(made_up)):
        assert line.ways[0] == "bf16, chunk 256"
        assert line.ways[4] == "fp32, chunk 256"
        assert line.ways[-1] == "nothing measured"


def test_other_rows_say_nothing(made_up: MakeRow) -> None:
    """Without everyday gates there is no such answer."""
    assert sentences([made_up()]) == []
    assert everyday([made_up()]) == []
