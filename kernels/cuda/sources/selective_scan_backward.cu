// selective_scan backward: the kernels that selective_scan_backward_instances.py names.
#include "selective_scan_backward_rows.cuh"
#include "selective_scan_backward_steps.cuh"
#include "selective_scan_backward_sums.cuh"

using scancheck::Fast;
using scancheck::Reproducible;
using scancheck::Tabulated;
