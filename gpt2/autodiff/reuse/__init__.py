"""Decides whether a recording may be used again: what it depended on, and whether that is still the same."""
