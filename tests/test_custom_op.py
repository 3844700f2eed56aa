"""A user's own recurrence from one file, as README shows it."""

from pathlib import Path

import pytest

from scancheck.errors import CaseInvalid
from scancheck.gate import verify

FILE = Path(__file__).parents[1] / "examples" / "own_recurrence.py"
OP = f"{FILE}:RULE"
CONTRACT = "structure=sequential"


def test_the_example_passes_with_gradients() -> None:
    """Every part of the user's op is seen, its own input included."""
    result = verify(f"{FILE}:step_form", op=OP, contract=CONTRACT, gradients=True)
    assert (result.verdict, result.record.unseen) == ("PASS", ())
    assert "gradient b" in result.record.seen
    assert result.record.op == OP
    assert f"--op {OP}" in result.record.replay


def test_a_fault_in_it_is_red_and_named() -> None:
    """The diagnosis knows the op by its lowering alone."""
    target = f"{FILE}:without_decay_of_what_is_erased"
    result = verify(target, op=OP, contract=CONTRACT)
    assert result.exit_code == 1
    causes = [finding.cause for finding in result.record.findings]
    assert "erased_undecayed" in causes


def test_one_case_replays_by_its_id() -> None:
    """An id holds no path, and finds its case again."""
    target = f"{FILE}:without_decay_of_what_is_erased"
    first = verify(target, op=OP, contract=CONTRACT).record.findings[0]
    assert "/" not in first.case_id
    again = verify(target, op=OP, contract=CONTRACT, case_id=first.case_id)
    assert again.exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("OTHER = 3", "expected what scancheck.custom_op makes; got int"),
        (
            "from scancheck import custom_op\n"
            "OTHER = custom_op('x', None, inputs={'v': 'B T H V', 'q': 'B T H K'},\n"
            "                  like='simple_gla')",
            "expected the sizes of simple_gla, B T H HV K V",
        ),
        (
            "from scancheck import custom_op\n"
            "OTHER = custom_op('x', None, inputs={'v': 'B T HV V', 'b': 'B T HV'},\n"
            "                  like='simple_gla')",
            "expected a range for b, which simple_gla does not have",
        ),
    ],
)
def test_what_is_no_op_is_told(tmp_path: Path, text: str, words: str) -> None:
    """One line that names what was expected."""
    path = tmp_path / "other.py"
    path.write_text(text + "\n")
    with pytest.raises(CaseInvalid, match=words):
        verify(f"{FILE}:step_form", op=f"{path}:OTHER", contract=CONTRACT)
