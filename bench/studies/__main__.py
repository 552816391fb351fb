"""Run studies and write their report: Markdown, JSON and one HTML page.

python -m bench.studies                        all of them
python -m bench.studies roots eam              some of them
python -m bench.studies --quick                small sizes, to see that everything still runs
python -m bench.studies --out FOLDER           where studies.md, .json and .html go (bench/results)
python -m bench.studies --from studies.json    the reports of an earlier run again
"""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from bench.harness import machine, program
from bench.harness.turns import environment
from bench.studies import STUDIES, find
from bench.studies.markdown import markdown
from bench.studies.page import page
from bench.studies.study import Report, from_json, to_json
from gpt2.errors import UserError
from gpt2.hints import install
from gpt2.parallel.cores import cores

ROOT = Path(__file__).resolve().parents[2]


def main(argv):
    options = parse(argv)
    if options.source:
        report = read(options.source, options.names)
    else:
        report = Report(
            machine.describe(),
            {"date": time.strftime("%Y-%m-%d"), "quick": options.quick, "threads": options.threads},
        )
        for name in find(options.names):
            run(name, options, report)
            write(report, options.out)  # after each study, so that an interrupted run keeps its results
    write(report, options.out)
    if options.json == "-":
        print(json.dumps(report_json(report), indent=1))
    else:
        print(markdown(report, listings=False))
        print(f"wrote {', '.join(str(options.out / name) for name in files(report))}", file=sys.stderr)
        if "studies.html" not in files(report):
            program.note(f"studies.html needs two packages: {install('markdown', 'matplotlib')}")
        program.write_json(options, report_json(report))
    return 1 if report.failed else 0


def parse(argv):
    p = program.plain_parser(
        "bench.studies", "Run studies, and write their report as Markdown, JSON and HTML."
    )
    p.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STUDIES)} (default: all)")
    p.add_argument(
        "--out",
        metavar="FOLDER",
        type=Path,
        default=ROOT / "bench" / "results",
        help="where studies.md, studies.json and studies.html are written (default bench/results)",
    )
    p.add_argument("--quick", action="store_true", help="small sizes, seconds a study: a test, no result")
    program.number(p, "--threads", cores(), "the most threads that are used")
    p.add_argument(
        "--seconds",
        metavar="S",
        type=program.positive(float),
        default=0.0,
        help="about how long each study may take (default: what each asks for)",
    )
    p.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="also write everything measured to "
        "FILE; without a name, JSON takes the place of the Markdown on standard output",
    )
    p.add_argument(
        "--from",
        metavar="FILE",
        dest="source",
        type=Path,
        help="write the reports of this JSON file, and measure nothing",
    )
    options = p.parse_args(argv)
    program.thread_counts(str(options.threads))
    find(options.names)
    return options


def run(name, options, report):
    """Run one study in a new process, free of others' threads and memory, and add it to the report."""
    program.note(f"{name} ...")
    chosen = {key: getattr(options, key) for key in ("quick", "threads", "seconds")}
    done = subprocess.run(
        [sys.executable, "-m", "bench.studies.one", name, json.dumps(chosen)],
        cwd=ROOT,
        text=True,
        env=environment(1),
        capture_output=True,
    )
    if done.returncode == 0:
        report.results[name] = from_json(json.loads(done.stdout))
        program.note(f"{name}: {report.results[name].seconds:.0f} s")
    else:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        report.failed[name] = lines[-1]
        program.note(f"{name} failed:\n{done.stderr}")


# ---- Files -------------------------------------------------------------------------------------------------


def report_json(report):
    return {
        "benchmark": "studies",
        "machine": report.machine,
        "options": report.options,
        "studies": {name: to_json(result) for name, result in report.results.items()},
        "failed": report.failed,
    }


def read(path, names=()):
    """The Report in this JSON file, restricted to the named studies if there are any."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        results = {
            name: from_json(result)
            for name, result in content["studies"].items()
            if not names or name in names
        }
        return Report(content["machine"], content["options"], results, content["failed"])
    except OSError as error:
        raise UserError(f"--from {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--from {path}: not a report of python -m bench.studies ({error!r})") from None


def files(report):
    """File name -> function that makes its text. The HTML page is left out if its packages are missing."""
    contents = {
        "studies.md": lambda: markdown(report),
        "studies.json": lambda: json.dumps(report_json(report), indent=1) + "\n",
    }
    if find_spec("markdown") and find_spec("matplotlib"):
        contents["studies.html"] = lambda: page(report)
    return contents


def write(report, folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files(report).items():
            (folder / name).write_text(text(), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {folder}: {error.strerror}") from None


if __name__ == "__main__":
    program.run(main)
