"""python -m bench.gradbench [--threads N]: answer GradBench's messages on standard input and output."""

import sys

from bench.gradbench import MODULES, protocol
from bench.harness import program
from bench.studies.measure import threads

ABOUT = "A tool of GradBench: answers its messages, one JSON object a line, on standard input and output. "


def main(argv):
    parser = program.plain_parser("bench.gradbench", f"{ABOUT}Modules: {', '.join(MODULES)}.")
    program.number(parser, "--threads", 1, "threads of compiled programs")
    options = parser.parse_args(argv)
    try:
        with threads(options.threads):
            protocol.serve(sys.stdin, lambda text: print(text, flush=True))
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # the client has gone; this silences Python's warning about standard output


if __name__ == "__main__":
    program.run(main)
