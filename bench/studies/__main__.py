"""Run studies and write their report, as Markdown and as JSON.

python -m bench.studies roots eam              some of them, or all
python -m bench.studies --quick                small sizes, to see that everything still runs
"""

import dataclasses
import json
import os
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from bench.harness import machine, program
from bench.harness.turns import environment
from bench.studies import STUDIES, find
from bench.studies.markdown import markdown
from bench.studies.study import Options, Report, from_json, measured
from gpt2.errors import UserError
from gpt2.machine import cores

ROOT = Path(__file__).resolve().parents[2]


def main(argv):
    options = parse(argv)
    if options.source:
        report = read(options.source, options.names)
    else:
        chosen = Options(options.quick, options.threads, options.seconds)
        report = Report(machine.describe(), {"date": time.strftime("%Y-%m-%d"), **dataclasses.asdict(chosen)})
        os.environ.update(environment(1))  # of the processes in which studies run
        for name in find(options.names):
            program.note(f"{name} ...")
            # In a new process, free of others' threads and memory
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                try:
                    report.results[name] = process.submit(measured, name, chosen).result()
                except Exception as error:
                    report.failed[name] = f"{type(error).__name__}: {error}"
                    program.note(f"{name} failed:\n{traceback.format_exc()}")
                else:
                    program.note(f"{name}: {report.results[name].seconds:.0f} s")
            write(report, options.out)  # after each study, so that an interrupted run keeps its results
    written = write(report, options.out)
    if options.json == "-":
        print(json.dumps(report_json(report), indent=1))
    else:
        print(markdown(report))
        program.note(f"wrote {', '.join(written)}")
        program.write_json(options, report_json(report))
    return 1 if report.failed else 0


def parse(argv):
    p = program.plain_parser("bench.studies", "Run studies, and write their report as Markdown and JSON.")
    p.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STUDIES)} (default: all)")
    out = "where studies.md and studies.json are written (default bench/results)"
    program.text(p, "--out", "FOLDER", ROOT / "bench" / "results", out, Path)
    p.add_argument("--quick", action="store_true", help="small sizes, seconds a study: a test, no result")
    program.number(p, "--threads", cores(), "the most threads that are used")
    seconds = "about how long each study may take (default: what each asks for)"
    program.text(p, "--seconds", "S", 0.0, seconds, program.positive(float))
    kept = "make the report of this studies.json, and measure nothing"
    p.add_argument("--from", metavar="FILE", dest="source", type=Path, help=kept)
    every = "also write everything measured to FILE; without a name, JSON takes the place of the Markdown"
    p.add_argument("--json", metavar="FILE", nargs="?", const="-", help=every)
    options = p.parse_args(argv)
    program.thread_counts(str(options.threads))
    find(options.names)
    return options


def report_json(report):
    return {"benchmark": "studies", **dataclasses.asdict(report)}


def read(path, names):
    """The Report in this file, or of it the named studies."""
    try:
        report = from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"--from {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--from {path}: no report of python -m bench.studies ({error!r})") from None
    report.results = {name: result for name, result in report.results.items() if name in (names or STUDIES)}
    return report


def write(report, folder):
    """Write studies.md and studies.json. Returns their paths."""
    kept = json.dumps(report_json(report), indent=1) + "\n"
    contents = {"studies.md": markdown(report), "studies.json": kept}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from None
    return [str(folder / name) for name in contents]


if __name__ == "__main__":
    program.run(main)
