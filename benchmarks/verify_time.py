"""How long `scancheck verify` takes for one kernel and dtype.

    python benchmarks/verify_time.py

Each run is a process of its own, as a user starts it: the first one with an empty cache
of compiled code, then with the cache that it has left.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, report

KERNELS = ("model.linear_scan.chunk64.plain", "model.selective_scan.chunk64.plain")
DTYPE = "fp32"


def verify_seconds(kernel: str, profile: str, cache: Path) -> float:
    """Wall-clock seconds of one run, gradients included; raises if it is not a pass."""
    command = [sys.executable, "-m", "scancheck", "verify", kernel]
    command += ["--dtype", DTYPE, "--profile", profile, "--gradients"]
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    environment.pop("NUMBA_CACHE_DIR", None)
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def figures() -> list[Figure]:
    """The first time, with warm caches, and the full profile, for both ops."""
    found = []
    for kernel in KERNELS:
        with tempfile.TemporaryDirectory() as folder:
            for name, profile, target in (
                ("first time", "quick", 45.0),
                ("warm", "quick", 20.0),
                ("warm", "full", 300.0),
            ):
                found.append(
                    Figure(
                        name=f"verify {profile}, {name}",
                        shape=f"{kernel} {DTYPE}, gradients",
                        value=verify_seconds(kernel, profile, Path(folder)),
                        unit="s",
                        target=target,
                        at_least=False,
                    )
                )
    return found


if __name__ == "__main__":
    sys.exit(report(figures()))
