"""Time of many texts into tokens, beside tiktoken; and of a step in which not all targets count.

The texts are Python's standard library and tinyshakespeare, cut and repeated. gpt2 reads the files twice, to
measure and hash them, and writes token files; tiktoken's `encode_ordinary_batch` has the texts in memory and
returns lists. A step is one at 4x128 by `whole`, where half of the targets are -1, and where all count.
"""

import tempfile
from pathlib import Path

import numpy as np

from bench.harness import contest, program, sizes
from bench.harness.contenders import Contender
from bench.harness.engine import Trainer, adamw
from bench.harness.worker import Work, seconds_of, training
from gpt2.autodiff import set_threads
from gpt2.data import corpora, named, tokenizer
from gpt2.model import GPT2

MODULE = "bench.texts"
TITLES = {
    "tiktoken": "tiktoken, texts in memory",
    "gpt2": "gpt2, from files to token files",
    "all": "step, all targets count",
    "half": "step, half of them -1",
}
CONTENDERS = {name: Contender(title, MODULE, name) for name, title in TITLES.items()}
COMPARED = {"gpt2": ["tiktoken"], "half": ["all"]}


def write_texts(folder, files, size):
    """Write `files` texts of `size` bytes in all; each begins elsewhere in the source."""
    source = (named.stdlib() + named.tinyshakespeare()).encode("ascii", "replace")
    each = size // files
    for k in range(files):
        begin = k * 7_919_993 % (len(source) - 1)
        text = (source[begin:] + source * (each // len(source) + 1))[:each]
        (Path(folder) / f"{k:03}.txt").write_bytes(text)


def work(_, name, threads, folder):
    """The Work of a contender's process."""
    if name in ("all", "half"):
        return steps(name, threads)
    words = tokenizer.gpt2()
    texts = [path.read_text() for path in sorted(Path(folder).iterdir())] if name == "tiktoken" else None
    count = 0

    def once():
        nonlocal count
        if texts:
            count = sum(map(len, words.encoding.encode_ordinary_batch(texts, num_threads=threads)))
            return
        with tempfile.TemporaryDirectory() as place:
            parts = corpora.prepare(folder, words, place).read()
            count = int(sum(np.count_nonzero(part != words.end_of_text) for part in parts))

    return Work(lambda n: {"times": {"step": [seconds_of(once) for _ in range(n)]}, "tokens": count})


def steps(name, threads):
    """Steps of training in which the first half of every sequence does not count, or all of it does."""
    set_threads(threads)
    size = sizes.find("4x128-B12T64")
    model = GPT2(size.config, "whole", seed=0)

    def batches():
        for tokens, targets in sizes.batches(size):
            if name == "half":
                targets[:, : size.T // 2] = -1
            yield tokens, targets

    return training(Trainer(model, adamw(model)), batches())


def main(argv):
    parser = program.parser(MODULE, "Time texts into tokens, and a step in which not all targets count.")
    program.number(parser, "--megabytes", 100, "of text")
    program.number(parser, "--files", 100, "that have it")
    program.number(parser, "--rounds", 5, "rounds, in each of which every contender takes a turn")
    options = parser.parse_args(argv)
    report = program.Report(options, "texts")
    with tempfile.TemporaryDirectory() as folder:
        write_texts(folder, options.files, options.megabytes * 10**6)
        for threads in program.thread_counts(options.threads):
            settings = dict(agree=lambda first: first.get("tokens"), turn_s=1.0, folder=folder)
            result = contest.measured(MODULE, CONTENDERS, threads, options.rounds, **settings)
            title = f"{options.megabytes} MB of text in {options.files} files"
            report.add(result, contest.as_text(title, result, CONTENDERS, COMPARED))
    report.write()


if __name__ == "__main__":
    program.run(main)
