"""How contenders are run in turns, and what all benchmarks share."""
