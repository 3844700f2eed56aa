"""The server that processes of kernels are forked from: what it imports, and its start.

Its imports take seconds, as those of the process that judges do; started before them,
they run side by side.
"""

import multiprocessing

# What PyTorch imports at the first backward pass, a second each time.
FIRST_BACKWARD = "torch.fx.experimental.symbolic_shapes"
FOR_ONE_KERNEL = ("scancheck.registry", "scancheck.runner.own_process", FIRST_BACKWARD)
FOR_JUDGING = ("scancheck.checks.oracle",)  # of processes that judge cases


def start_for_cuda(target: str, device: str | None) -> None:
    """Starts the server where the request is for CUDA and a device may be there.

    Nothing that takes time is imported here. Without a server, as on Windows, or with
    one that runs already, nothing happens.
    """
    from scancheck.kernels.cuda.toolkit import unavailable

    asked = target if device is None else device
    if not asked.startswith("cuda") or unavailable() is not None:
        return
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return
    from multiprocessing import forkserver

    multiprocessing.set_forkserver_preload(list(FOR_ONE_KERNEL + FOR_JUDGING))
    forkserver.ensure_running()
