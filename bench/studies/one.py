"""Run one study and print its result as JSON; `python -m bench.studies` starts this in a new process.

python -m bench.studies.one NAME '{"quick": true, "threads": 1, "seconds": 0}'
"""

import contextlib
import dataclasses
import json
import sys
import time

from bench.harness import machine
from bench.studies import load
from bench.studies.study import Options, to_json


def main(name, options):
    with contextlib.redirect_stdout(sys.stderr):  # libraries may print too
        result = measured(load(name), Options(**json.loads(options)))
    print(json.dumps(to_json(result)))


def measured(study, options):
    """Run the study; its Result with machine, load, time and options filled in."""
    options = dataclasses.replace(options, seconds=options.seconds or study.seconds)
    load, begin = machine.Load(), time.perf_counter()
    result = study.run(options)
    result.seconds = time.perf_counter() - begin
    result.load = load.report()
    result.machine = machine.describe()
    result.options = dataclasses.asdict(options)
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
