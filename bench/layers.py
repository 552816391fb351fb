"""Time each layer beside its peers, by pytest-benchmark: the run of test_layers.py as a command.

python -m bench.layers --only "attention and both"
python -m bench.layers --threads 2 --batch B4T256
pytest bench/test_layers.py --benchmark-only        the same, with all options of pytest-benchmark
"""

from pathlib import Path

import pytest

from bench.harness import program

TESTS = Path(__file__).with_name("test_layers.py")


def main(argv):
    parser = program.plain_parser(
        "bench.layers", "Time each layer beside its peers: forward, backward, both."
    )
    words = "names to choose by, as of pytest's -k: layers, contenders, forward, backward, both"
    program.text(parser, "--only", "WORDS", "", words)
    program.number(parser, "--threads", 1, "threads of each contender")
    program.text(parser, "--batch", "NAME", "B4T64", "sequences and positions (default B4T64)")
    options = parser.parse_args(argv)
    return pytest.main(
        [str(TESTS), "--benchmark-only", "--benchmark-sort=name", "--benchmark-columns=median,iqr,min,rounds"]
        + [f"--bench-threads={options.threads}", f"--bench-batch={options.batch}", "-k", options.only]
    )


if __name__ == "__main__":
    program.run(main)
