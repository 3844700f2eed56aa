"""The loops that adapters are compared with are a module beside their tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
