"""Time a new process up to the end of its first update, part by part.

    python -m bench.first_step
    python -m bench.first_step --size 124M-B4T256 --backward manual --threads 1 --runs 3

Each run is a new process, with Python's bytecode compiled before, as after an installation. Interpreter
start, imports and the trials of how to split products count. Results of trials are kept in a temporary
folder, and used once three runs agree. The last column is a later step: forward, backward and update.

A process first writes to as much memory as it will need, which does not count: on a virtual machine the first
use of a page costs up to two seconds a gigabyte, and freed pages may be taken away at once. --untouched
leaves that out, so that first uses count.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

from bench.harness import machine, program, ratios, sizes
from bench.harness.contenders import KEEP_MEMORY
from bench.harness.first_process import PARTS
from bench.harness.turns import ROOT, environment
from gpt2.errors import counted
from gpt2.model import GPT2Config

BYTES = 20  # peak memory per parameter: parameter, gradient, two moments, temporaries


def main(argv):
    parser = program.parser(
        "bench.first_step", "How long a process takes to its first step, part by part.", "threads of the step"
    )
    program.model_flags(parser)
    program.number(parser, "--runs", 5, "processes")
    parser.add_argument("--untouched", action="store_true", help="count the first use of memory as well")
    options = parser.parse_args(argv)
    size, threads = sizes.find(options.size, flag="--size"), program.thread_counts(options.threads)[-1]
    report = program.Report(options, "first_step")
    load = machine.Load()
    with tempfile.TemporaryDirectory() as folder:
        touched = 0 if options.untouched else BYTES * size.config.num_parameters
        runs = [measure(size, options.backward, threads, folder, touched) for _ in range(options.runs)]
    result = {"size": size.name, "backward": options.backward, "threads": threads, "runs": runs}
    result |= {"touched": touched, "load": load.report()}
    report.add(result, as_text(result))
    report.write()
    return 0


def measure(size, backward, threads, folder, touched=0):
    """Seconds of each part in one new process, as a dict."""
    env = {**environment(threads), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    if touched:
        env |= KEEP_MEMORY
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(config, B, T):
        command = [sys.executable, "-m", "bench.harness.first_process", json.dumps(asdict(config)), backward]
        command += [*map(str, (threads, B, T)), folder, str(touched), repr(time.time())]
        done = subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    run(GPT2Config(vocab_size=64, block_size=16, n_layer=2, n_head=2, n_embd=16), 2, 16)
    return run(size.config, size.B, size.T)


def as_text(result):
    rows = [[f"run {k}", *(f"{run[part]:.2f}" for part in PARTS)] for k, run in enumerate(result["runs"], 1)]
    head = f"{result['size']}, gpt2 {result['backward']}, {counted(result['threads'], 'thread')}: "
    head += "seconds from an empty process to the end of the first update"
    if result["touched"]:
        head += f", {result['touched'] / 2**30:.1f} GiB of memory touched before"
    return "\n".join([head, ratios.table(["", *PARTS], rows), program.load_line(result["load"])])


if __name__ == "__main__":
    program.run(main)
