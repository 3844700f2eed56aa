"""How long the package takes to start, and that it starts without heavy imports.

python benchmarks/start_up.py
"""

import subprocess
import sys
import time

from figures import Figure, report

HEAVY = ("torch", "pandas", "matplotlib", "numba")
# Run in a process of its own: what a start has imported, counted at its end.
COUNT = f"""
import atexit, sys
atexit.register(
    lambda: print("HEAVY", sum(name in sys.modules for name in {HEAVY!r}))
)
"""
STARTS = {
    "import scancheck": "import scancheck",
    "scancheck --help": (
        "from scancheck.cli import main\nsys.argv = ['scancheck', '--help']\nmain()"
    ),
    "pytest start-up with the plugin": (
        "import pytest, tempfile\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    pytest.main(['-q', '-p', 'no:cacheprovider', folder])\n"
        "assert 'scancheck.pytest_plugin' in sys.modules"
    ),
}


def measured(name: str, code: str) -> list[Figure]:
    """Seconds and heavy imports of one way to start."""
    command = [sys.executable, "-c", COUNT + code]
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
    lines = [line for line in done.stdout.splitlines() if line.startswith("HEAVY")]
    heavy = float("nan")
    if done.returncode == 0 and lines:
        heavy = float(lines[-1].split()[1])
    return [
        Figure(name=name, shape="", value=min(seconds), unit="s"),
        Figure(
            name=name,
            shape=f"imports of {', '.join(HEAVY)}",
            value=heavy,
            unit="modules",
            target=0.0,
            at_least=False,
        ),
    ]


def figures() -> list[Figure]:
    """All ways to start."""
    return [f for name, code in STARTS.items() for f in measured(name, code)]


if __name__ == "__main__":
    sys.exit(report(figures()))
