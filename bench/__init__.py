"""Benchmarks: this engine beside itself and beside its peers. See docs/speed.md."""
