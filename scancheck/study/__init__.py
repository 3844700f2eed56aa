"""Sweeps for the precision report: what is run, what is kept of it, and its file."""
