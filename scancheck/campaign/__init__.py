"""Fuzzing: a stream of cases, kernels in processes of their own, findings in files."""
