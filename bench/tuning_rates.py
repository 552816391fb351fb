"""Find the best learning rate of each kind of --train, on base models of three sizes.

    python -m bench.tuning_rates --models small --kinds lora:8,all

Each base model learns Shakespeare, byte by byte, and is then tuned to Python's library source by the preset
finetune, 60 steps of 1,024 tokens, at every rate. Prints validation losses; docs/fine-tuning.md has them.
"""

import tempfile
from pathlib import Path

from bench.harness import contenders, program
from gpt2.train import Reporter, Settings, from_preset, train

SIZES = {"small": (2, 4, 64), "medium": (4, 4, 128), "large": (6, 6, 192)}  # blocks, heads, channels
KINDS = ("all", "lora:8", "biases", "last:1")
RATES = (5e-5, 1.5e-4, 5e-4, 1.5e-3, 5e-3, 1.5e-2, 5e-2)
SILENT = {"sample_tokens": 0, "eval_every": 0, "save_every": 0}


def base(size: str, folder: Path, threads: int) -> Path:
    """Train a base model; returns its folder."""
    L, NH, C = SIZES[size]
    shape = {"n_layer": L, "n_head": NH, "n_embd": C, "block_size": 128, "tokenizer": "byte"}
    shape |= {"data": "tinyshakespeare", "out": str(folder), "threads": threads}
    shape |= {"steps": 250, "lr": 3e-3, "min_lr": 3e-4, "muon_lr": 0.03}
    return trained(from_preset("shakespeare", **shape, **SILENT))[0]


def trained(settings: Settings) -> tuple[Path, float]:
    """(folder, validation loss after the last step) of a run."""
    run = train(settings, overwrite=True, reporter=Reporter())
    return run.folder, run.validation_loss()


def tuned(folder: Path, kind: str, rate: float, threads: int) -> float:
    """The validation loss of the base model in `folder` after the preset finetune."""
    out = str(folder.with_name("tuned"))
    data = {"init": str(folder), "data": "stdlib", "out": out, "eval_batches": 40, "threads": threads}
    return trained(from_preset("finetune", train=kind, lr=rate, min_lr=rate / 10, **data, **SILENT))[1]


def main(argv):
    parser = program.parser("bench.tuning_rates", "Find the best learning rate of each kind of --train.")
    program.names(parser, "--models", ",".join(SIZES), f"of {', '.join(SIZES)}")
    program.names(parser, "--kinds", ",".join(KINDS), "what is trained, as for --train")
    options = parser.parse_args(argv)
    sizes = contenders.find(options.models, (), SIZES, "--models")
    (threads, *_) = program.thread_counts(options.threads)
    report = program.Report(options, "tuning_rates")
    with tempfile.TemporaryDirectory() as temporary:
        for size in sizes:
            folder = base(size, Path(temporary, size), threads)
            for kind in options.kinds.split(","):
                losses = {rate: tuned(folder, kind, rate, threads) for rate in RATES}
                text = "  ".join(f"{rate:g}: {loss:.3f}" for rate, loss in losses.items())
                report.add({"model": size, "train": kind, "losses": losses}, f"{size:7}{kind:8}{text}")
    report.write()


if __name__ == "__main__":
    program.run(main)
