"""The loops of ops in step form are a module beside these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
