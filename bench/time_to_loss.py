"""Time and steps to a validation loss: this engine's recipes and nanoGPT's on PyTorch, on the same text.

    python -m bench.time_to_loss --recipes torch-adamw,muon --target 1.7 --seeds 0,1,2

nanoGPT's model and batches for a CPU: 4 blocks of 128 channels, 12 sequences of 64 letters of
tinyshakespeare. All recipes of a seed have the same initial weights, batches and validation batches, and
take turns of some steps in processes of their own. Only training steps are timed. A recipe ends when its
loss is at the target, or its steps are over.
"""

import time

import numpy as np

from bench.harness import program, ratios
from bench.harness.contenders import KEEP_MEMORY, Contender
from bench.harness.turns import Player, settle
from bench.harness.worker import Work
from gpt2.data import corpora
from gpt2.data.tokens import Loader, evenly, read_tokens
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.muon import Muon
from gpt2.model.optimizer import AdamW, cosine_lr

B, EVERY, VALIDATION = 12, 50, 60  # sequences in a batch; steps in a turn; validation batches
MODULE = "bench.time_to_loss"
SHARED = {"betas": (0.9, 0.99), "weight_decay": 0.1}
# Steps of the cosine schedule after WARMUP, and the highest rates: of AdamW, and of Muon's matrices
WARMUP, LEAST = 100, 0.1
RECIPES = {
    "torch-adamw": ("PyTorch, fused AdamW: nanoGPT's recipe", dict(steps=2000, lr=1e-3)),
    "torch-muon": ("PyTorch, its Muon, fused AdamW", dict(steps=600, lr=2e-3, muon_lr=0.02)),
    "adamw": ("gpt2, AdamW: nanoGPT's recipe", dict(steps=2000, lr=1e-3)),
    "adamw-4e-3": ("gpt2, AdamW, 4e-3", dict(steps=1000, lr=4e-3)),
    "muon": ("gpt2, Muon", dict(steps=600, lr=2e-3, muon_lr=0.02)),
}


def main(argv):
    parser = program.parser(MODULE, "Time and steps to a validation loss, beside PyTorch.")
    program.names(parser, "--recipes", "", f"some of {', '.join(RECIPES)}")
    program.text(parser, "--seeds", "N,...", "0", "of weights and batches (default 0)")
    program.number(parser, "--target", 1.88, "validation loss, nats per letter", float)
    options = parser.parse_args(argv)
    names = [name.strip() for name in options.recipes.split(",") if name.strip()] or list(RECIPES)
    if unknown := [name for name in names if name not in RECIPES]:
        raise UserError(f"--recipes: unknown name {unknown[0]!r}, expected some of {', '.join(RECIPES)}")
    report = program.Report(options, "time_to_loss", program.machine.describe())
    for threads in program.thread_counts(options.threads):
        seeds = program.whole_numbers(options.seeds, "--seeds")
        curves = [raced(names, seed, threads, options) for seed in seeds]
        result = {"threads": threads, "target": options.target, "seeds": seeds, "curves": curves}
        report.add(result, as_text(result))
    report.write()


def raced(names, seed, threads, options):
    """Recipe -> its curve for one seed: [steps, seconds, validation loss] after each turn."""
    program.note(f"seed {seed}, {threads} threads: {', '.join(names)}")
    players, curves = {}, {}
    try:
        for name in names:
            needs = ("torch", KEEP_MEMORY) if name.startswith("torch") else ()
            contender = Contender(RECIPES[name][0], MODULE, name, *needs)
            players[name] = Player(name, contender, threads)
            players[name].ask(do="work", make=f"{MODULE}:work", seed=seed)
            curves[name] = []
        running = list(names)
        while running:
            for name in list(running):
                before = curves[name][-1] if curves[name] else [0, 0.0, None]
                answer = players[name].ask(do="turn", steps=EVERY)
                settle(*players[name].pids)
                steps = before[0] + EVERY
                curves[name].append([steps, before[1] + sum(answer["times"]["step"]), answer["loss"]])
                if answer["loss"] <= options.target or steps >= RECIPES[name][1]["steps"]:
                    running.remove(name)
    finally:
        for player in players.values():
            player.close()
    return curves


def as_text(result):
    """A row a recipe: medians over the seeds, and the ratio to the first recipe's seconds in each seed."""
    first, *_ = result["curves"][0]
    reached = {
        name: [row if (row := c[name][-1])[2] <= result["target"] else None for c in result["curves"]]
        for name in result["curves"][0]
    }
    lines = []
    for name, rows in reached.items():
        there = [row for row in rows if row]
        pairs = [a[1] / b[1] for a, b in zip(rows, reached[first]) if a and b]
        medians = [f"{np.median([row[i] for row in there]):.0f}" if there else "-" for i in (0, 1)]
        ratio = f"{np.median(pairs):.2f} [{min(pairs):.2f} {max(pairs):.2f}]" if pairs else "-"
        best = np.median([min(point[2] for point in c[name]) for c in result["curves"]])
        lines.append([RECIPES[name][0], f"{len(there)} of {len(rows)}", *medians, ratio, f"{best:.4f}"])
    header = ["recipe", "reached", "steps", "seconds", f"to {first}", "best loss"]
    title = f"to {result['target']:g} nats per letter, {result['threads']} threads; medians over the seeds"
    return "\n".join([title, ratios.table(header, lines)])


# ---- In a recipe's process ---------------------------------------------------------------------------------


def work(_, name, threads, seed):
    """The Work of a recipe: some steps, timed, and then the validation loss."""
    recipe = RECIPES[name][1]
    corpus = corpora.prepare("tinyshakespeare", "char")
    config = GPT2Config.preset("shakespeare-char-cpu", vocab_size=corpus.tokenizer.vocab_size)
    loader = Loader(read_tokens(corpus.train), B, config.block_size, seed)
    validation = list(evenly(read_tokens(corpus.val), B, config.block_size, VALIDATION))
    trainer = (TorchTrainer if name.startswith("torch") else Trainer)(config, recipe, threads, seed)
    done = 0

    def turn(steps):
        nonlocal done
        times = []
        for _ in range(steps):
            batch = loader.next_batch()
            scale = cosine_lr(done, lr=1.0, min_lr=LEAST, warmup=WARMUP, steps=recipe["steps"])
            begin = time.perf_counter()
            trainer.step(*batch, scale)
            times.append(time.perf_counter() - begin)
            done += 1
        loss = float(np.mean([trainer.loss(*batch) for batch in validation]))
        return {"times": {"step": times}, "loss": loss}

    return Work(turn)


class Trainer:
    """This engine: the whole loss as one program, a share of each batch on every thread."""

    def __init__(self, config, recipe, threads, seed):
        from bench.harness.engine import set_threads
        from gpt2.parallel.shares import Shares

        set_threads("shares", threads)
        model = GPT2(config, backward="whole", seed=seed)
        if "muon_lr" in recipe:
            optimizer = Muon(model, lr=recipe["muon_lr"], adamw_lr=recipe["lr"], **SHARED)
        else:
            optimizer = AdamW(model, lr=recipe["lr"], **SHARED)
        self.team = Shares(model, optimizer, threads)

    def step(self, tokens, targets, scale):
        self.team.step([(tokens, targets)], scale * self.team.optimizer.lr, 1.0)

    def loss(self, tokens, targets):
        return self.team.loss(tokens, targets)


class TorchTrainer:
    """The model of bench/peers/pytorch.py from the same weights, with torch.optim's optimizers."""

    def __init__(self, config, recipe, threads, seed):
        import torch

        from bench.peers import pytorch

        self.torch = torch
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        model = pytorch.build(config, GPT2(config, seed=seed).params)
        inner = [p for block in model.blocks for p in block.parameters() if p.dim() == 2]
        muon = {id(p) for p in inner} if "muon_lr" in recipe else set()
        groups = pytorch.decaying([p for p in model.parameters() if id(p) not in muon])
        optimizers = [torch.optim.AdamW(groups, lr=recipe["lr"], betas=SHARED["betas"], eps=1e-8, fused=True)]
        if muon:
            settings = {"lr": recipe["muon_lr"], "weight_decay": SHARED["weight_decay"]}
            optimizers.append(torch.optim.Muon(inner, **settings))
        self.trainer = pytorch.Trainer(model, list(model.parameters()), *optimizers)
        self.highest = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]

    def step(self, tokens, targets, scale):
        for optimizer, highest in zip(self.trainer.optimizers, self.highest):
            for group in optimizer.param_groups:
                group["lr"] = scale * highest
        self.trainer.step(tokens.astype(np.int64), targets.astype(np.int64))

    def loss(self, tokens, targets):
        with self.torch.no_grad():
            batch = (self.torch.from_numpy(a.astype(np.int64)) for a in (tokens, targets))
            return self.trainer.loss(*batch).item()


if __name__ == "__main__":
    program.run(main)
