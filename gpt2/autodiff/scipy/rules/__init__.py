"""Ops of SciPy's functions: rows of the table, added when SciPy is first used."""
