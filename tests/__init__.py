"""The tests, in folders named after what they test. Helpers are in tests/support, long runs in tests/long."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # of the repository
