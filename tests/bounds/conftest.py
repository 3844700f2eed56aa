"""The emulated machines are modules beside these tests, recurrences beside others."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "oracles"), str(HERE.parent / "ops")]
