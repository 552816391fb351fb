"""Time each layer beside its peers: pytest-benchmark over test_layers.py, as a command like the others.

python -m bench.layers                                  all layers and contenders, one thread
python -m bench.layers -k "attention and both"          options are pytest's
python -m bench.layers --bench-threads 2 --bench-batch B4T256
"""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("test_layers.py")


def main(argv):
    columns = "--benchmark-columns=median,iqr,min,rounds"
    return pytest.main([str(TESTS), "--benchmark-only", "--benchmark-sort=name", columns, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
