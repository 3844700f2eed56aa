"""Rows to one self-contained page: tables, figures and advice."""
