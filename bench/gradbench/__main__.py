"""python -m bench.gradbench [--threads N]: answer GradBench's messages on standard input and output."""

import argparse
import sys

from bench.gradbench import MODULES, protocol
from bench.studies.measure import threads
from gpt2.errors import UserError
from gpt2.hints import typed


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog=typed("python -m bench.gradbench"),
        description="A tool of GradBench: answers its messages, one JSON object a line, on standard input "
        f"and output. Modules: {', '.join(MODULES)}.",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of compiled programs (default 1)")
    options = parser.parse_args(arguments)
    if options.threads < 1:
        parser.error(f"--threads is {options.threads}, expected at least 1")
    try:
        with threads(options.threads):
            protocol.serve(sys.stdin, lambda text: print(text, flush=True))
    except UserError as error:
        sys.exit(f"bench.gradbench: {error}")
    except (KeyboardInterrupt, BrokenPipeError):
        sys.stderr.close()  # the client has gone; this silences Python's warning about standard output


if __name__ == "__main__":
    main()
