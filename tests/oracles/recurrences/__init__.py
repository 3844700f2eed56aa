"""Recurrences as tests write them down once more."""
