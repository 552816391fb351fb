"""One study in this process; its result as JSON on standard output. `python -m bench.studies` starts this.

python -m bench.studies.one roots --quick
"""

import contextlib
import dataclasses
import json
import sys
import time

from bench.harness import machine, program
from bench.studies import load
from bench.studies.study import Options, to_json


def main(argv):
    parser = program.plain_parser("bench.studies.one", __doc__.split("\n")[0])
    parser.add_argument("name", help="of the study")
    parser.add_argument("--quick", action="store_true", help="small sizes, seconds: a test, no result")
    program.number(parser, "--threads", machine.available_cores(), "the most that are used")
    parser.add_argument("--seconds", type=float, default=0.0, help="that it may take (0: what it asks for)")
    args = parser.parse_args(argv)
    with contextlib.redirect_stdout(sys.stderr):  # whatever a study or a peer prints is not the result
        result = measured(load(args.name), Options(args.quick, args.threads, args.seconds))
    print(json.dumps(to_json(result)))
    return 0


def measured(study, options):
    """The study's Result, with what it ran on and beside what."""
    options = dataclasses.replace(options, seconds=options.seconds or study.seconds)
    load, begin = machine.Load(), time.perf_counter()
    result = study.run(options)
    result.seconds = time.perf_counter() - begin
    result.load = load.report()
    result.machine = machine.describe()
    result.options = dataclasses.asdict(options)
    return result


if __name__ == "__main__":
    program.run(main)
