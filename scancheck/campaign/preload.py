"""Numba made ready before processes are forked, which each would do for itself.

Its first call of a compiled function fills the registries of types and functions, most
of a second. One without threads is called: a forked process has none of them.
"""

from scancheck.oracles.double_word import two_sum

two_sum(1.0, 1.0)
