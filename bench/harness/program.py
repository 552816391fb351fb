"""What the programs of bench/ share: flags, exit status, reports."""

import json
import os
import sys
from argparse import ArgumentTypeError  # unlike a ValueError's, its text reaches the user
from pathlib import Path

from bench.harness import contenders, machine
from gpt2.autodiff import Options
from gpt2.backward import options_for
from gpt2.cli import Parser
from gpt2.errors import UserError
from gpt2.hints import typed
from gpt2.machine import cores


def plain_parser(module, description):
    """A parser for `python -m MODULE` with no flags yet."""
    return Parser(module, description, prog=typed(f"python -m {module}"))


def parser(module, description, threads="threads of each contender, e.g. 1,2"):
    """A parser with --threads and --json. threads: the help text of the former."""
    p = plain_parser(module, description)
    text(p, "--threads", "N,...", "", f"{threads} (default: as many as there are cores)")
    words = "also write everything measured to FILE; without a name, JSON takes the place of the tables"
    p.add_argument("--json", metavar="FILE", nargs="?", const="-", help=words)
    return p


def text(p, flag, metavar, default, words, kind=str):
    """A flag with a value. kind: parses its text."""
    p.add_argument(flag, metavar=metavar, default=default, type=kind, help=words)


def number(p, flag, default, words, kind=int):
    """A flag that takes a positive number."""
    text(p, flag, "N" if kind is int else "S", default, f"{words} (default {default:g})", positive(kind))


def names(p, flag, default, words):
    """A flag that takes comma-separated names."""
    text(p, flag, "NAME,...", default, f"{words} (default {default or 'all'})")


def contest_flags(p, rounds, seconds, default, among=contenders.CONTENDERS):
    """The flags of contests of `contenders.CONTENDERS`. default: who takes part, among: who can."""
    p.note = contenders.summary(default, among)
    text(p, "--contenders", "NAME,...", "", "names from the list below; docs/benchmarks.md describes them")
    number(p, "--rounds", rounds, "rounds at most")
    number(p, "--seconds", seconds, "time for the rounds of one table; at least three are played", float)
    words = "what computes this engine's compiled elementwise operations (default numpy)"
    text(p, "--elementwise", "|".join(Options.BACKENDS), "numpy", words, elementwise)
    words = "avx2: all contenders leave AVX-512 alone, as on an older processor (default own)"
    kinds = tuple(machine.PROCESSORS)
    p.add_argument("--processor", metavar="|".join(kinds), choices=kinds, default="own", help=words)


def facts(options):
    """`machine.describe`. Also sets the environment of --processor for all processes started later."""
    os.environ.update(machine.instructions(options.processor))
    return {**machine.describe(), "passes_for": options.processor}


def elementwise(text):
    """Parse --elementwise: a backend that is installed."""
    if text not in Options.BACKENDS:
        raise ArgumentTypeError(f"expected one of {', '.join(Options.BACKENDS)}; got {text!r}")
    try:
        options_for(text)  # finds numexpr
    except UserError as error:
        raise ArgumentTypeError(f"{text}: {error.as_flag}") from None
    return text


def positive(kind):
    def read(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value

    read.__name__ = f"positive {kind.__name__}"
    return read


def whole_numbers(text, flag):
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{flag}: {text!r} is not a list of whole numbers such as 1,2") from None


def thread_counts(text):
    """Parse --threads. Raises UserError for numbers larger than the number of cores."""
    most = cores()
    counts = whole_numbers(text, "--threads") if text else [most]
    for n in counts:
        if not 1 <= n <= most:
            raise UserError(f"--threads: {n}, expected 1 to {most}, the cores of this machine")
    return counts


def run(main):
    """Run main(argv) and exit. A UserError is printed on one line, with status 2."""
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error.as_flag}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def say(options, text=""):
    """Print, unless standard output belongs to JSON."""
    if options.json != "-":
        print(text, flush=True)


def note(text):
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def write_json(options, content):
    if not options.json:
        return
    text = json.dumps(content, indent=1)
    if options.json == "-":
        print(text)
        return
    path = Path(options.json)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"--json {path}: {error.strerror}") from None


class Report:
    """The output of a benchmark, printed and written as JSON: facts about the machine, then the results."""

    def __init__(self, options, benchmark, facts=None, **more):
        self.options = options
        self.content = {"benchmark": benchmark, **more, "machine": facts or machine.describe(), "results": []}
        say(options, machine_line(self.content["machine"]))

    def add(self, result, text):
        self.content["results"].append(result)
        say(self.options, "\n" + text)

    def write(self):
        """Write all results to the file of --json. Returns them."""
        write_json(self.options, self.content)
        return self.content["results"]


def machine_line(facts):
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    passing = machine.PROCESSORS[facts.get("passes_for", "own")]
    return (
        f"{facts['cpu']}{passing and ' ' + passing}, {facts['cores']} cores, {facts['memory_gb']} GB; "
        f"Python {facts['python']}, {packages}; BLAS of NumPy: {facts['blas']}; float32"
    )


def load_line(load):
    """The load of other programs, as one line."""
    if load is None or load["others"] is None:
        return "load of others: not known on this system"
    disturbed = load.get("rounds_disturbed", 0) and load["rounds_counted"] == load["rounds"]
    warning = " (busy: take these numbers with care)" if disturbed else ""
    counted = f"; {load['rounds_counted']} of {load['rounds']} rounds counted" if "rounds" in load else ""
    return (
        f"others used {load['others']:.1%} of the machine in these {load['seconds']:.0f} s, "
        f"load average {load['load_average'][0]}{counted}{warning}"
    )
