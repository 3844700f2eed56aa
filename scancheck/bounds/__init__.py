"""How far rounding may take each output element: companion scans to budgets."""
