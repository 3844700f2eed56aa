"""One planted bug and its control through all rules, on the tensors of verify."""

from power import kernels, rows_of

from scancheck.kernels.faulty.catalog import controls, faulty


def test_every_bug_has_a_control_on_its_own_cases() -> None:
    """A control is called with the chunk and the layouts of each bug."""
    interfaces = {
        (k.op, k.chunk, k.layouts) for k in kernels() if k.name.startswith("control.")
    }
    assert {(bug.op, bug.chunk, bug.layouts) for bug in faulty()} <= interfaces
    names = [kernel.name for kernel in kernels()]
    assert len(set(names)) == len(names)


def test_rows_of_a_bug_and_of_its_control() -> None:
    """The bug is red and named on cases that the control passes; ids are shared."""
    bug = next(k for k in faulty() if k.name.endswith("scan.carry_uses_own_total"))
    control = next(k for k in controls() if k.op == bug.op)
    rows = rows_of(bug, "fp32", "quick", 0)
    right = rows_of(control, "fp32", "quick", 0)
    assert {row.case_id for row in rows} == {row.case_id for row in right}
    assert all(row.named and row.bug == "carry_uses_own_total" for row in rows)
    assert any(row.scancheck and row.assert_close for row in rows)
    assert not any(row.scancheck or row.bug or row.short for row in right)
