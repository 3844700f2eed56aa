"""What a campaign's processes do: they judge one trial after the other."""

from scancheck.campaign.judging import Judge
from scancheck.contract import Contract
from scancheck.runner.own_process import Loader
from scancheck.runner.serving import Answer


def prepare(load: Loader, contract: Contract, gradients: bool) -> tuple[Answer, str]:
    """What judges the trials of a kernel in this process, and the kernel's device."""
    kernel = load()
    return Judge(kernel, contract, gradients=gradients).judge, kernel.devices[0]
