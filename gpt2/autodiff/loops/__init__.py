"""Loops with a body that is recorded once: scan, while_loop, parallel_map, and the ops behind them."""
