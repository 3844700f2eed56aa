// selective_scan forward: the kernels that selective_scan.py instantiates.
#include "selective_scan_rows.cuh"
