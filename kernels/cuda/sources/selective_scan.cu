// selective_scan forward: the kernels that selective_scan_instances.py names.
#include "selective_scan_rows.cuh"
#include "selective_scan_steps.cuh"
#include "selective_scan_time.cuh"

using scancheck::Fast;
using scancheck::Reproducible;
using scancheck::Tabulated;
