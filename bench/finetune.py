"""A step that trains adapters, beside the step that trains everything, and beside peft on PyTorch.

    python -m bench.finetune
    python -m bench.finetune --models gpt2-xl --contenders lora,peft,peft-compile --rounds 3

All have the same random weights of the true size, read from one folder, one sequence of 256 tokens a step,
and AdamW. Those of peft have PyTorch as its users can have it at its fastest (the fused kernel, denormal
numbers flushed to zero, a process that keeps its memory), eager and compiled. They work in turns, each in a
process of its own; what counts is the median of the ratios within a round. The first losses, before anything
is trained, have to agree. Memory is the most that the process ever held, pages of mapped files included.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.harness import machine, program
from bench.harness.contenders import KEEP_MEMORY
from bench.harness.sizes import BETAS, CLIP, EPS, LR
from bench.harness.turns import Lines, environment
from bench.harness.worker import watch_coordinator
from gpt2 import AdamW
from gpt2.autodiff import set_threads
from gpt2.commands.convert import write
from gpt2.errors import UserError
from gpt2.model import GPT2, GPT2Config
from gpt2.model.tuning import Tuning
from gpt2.weights import pretrained

B, T = 1, 256
TOLERANCE = 1e-4  # of the first loss: float32 programs that add up in different orders
RANK = 8
MODELS = ("gpt2", "gpt2-medium", "gpt2-xl")


class Ours:
    """A step of this engine: of adapters, or of everything."""

    def __init__(self, folder, threads, train, targets, backward="whole"):
        set_threads(threads)
        found = pretrained.find(folder)
        tuning = Tuning(train, lora_targets=targets)
        self.model = GPT2(found.config, backward, seed=None, train=tuning)
        found.into(self.model)
        self.optimizer = AdamW(self.model, lr=LR, betas=BETAS, eps=EPS)

    def __call__(self, tokens, targets):
        loss = self.model.loss_and_grads(tokens, targets)
        self.optimizer.step(clip=CLIP)
        return loss


class Peft:
    """A step of peft's adapters on transformers' GPT2LMHeadModel."""

    def __init__(self, folder, threads, targets, compiled=False):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2LMHeadModel

        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        self.torch = torch
        base = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa")
        settings = LoraConfig(
            r=RANK,
            lora_alpha=RANK,
            target_modules=targets.split(","),
            fan_in_fan_out=True,
            task_type="CAUSAL_LM",
        )
        model = get_peft_model(base, settings).train()
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.params, lr=LR, betas=BETAS, eps=EPS, fused=True)
        self.model = torch.compile(model) if compiled else model

    def __call__(self, tokens, targets):
        torch = self.torch
        logits = self.model(input_ids=torch.from_numpy(tokens), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


CONTENDERS = {
    "full": lambda folder, threads, targets: Ours(folder, threads, "all", targets),
    "lora": lambda folder, threads, targets: Ours(folder, threads, f"lora:{RANK}", targets),
    "lora-manual": lambda folder, threads, targets: Ours(folder, threads, f"lora:{RANK}", targets, None),
    "peft": Peft,
    "peft-compile": lambda folder, threads, targets: Peft(folder, threads, targets, compiled=True),
}
PEERS = ("peft", "peft-compile")


# ---- A contender's process -------------------------------------------------------------------------------


def work(name, folder, threads, targets):
    """Answer each line of standard input, a number of steps: their seconds, the first loss, the memory."""
    watch_coordinator()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    step = CONTENDERS[name](folder, threads, targets)
    config = pretrained.find_config(folder)
    rng = np.random.default_rng(1)
    for line in sys.stdin:
        times, losses = [], []
        for _ in range(int(line)):
            tokens, wanted = rng.integers(0, config.vocab_size, (2, B, T))
            begin = time.perf_counter()
            losses.append(step(tokens, wanted))
            times.append(time.perf_counter() - begin)
        print(json.dumps([times, losses[0], machine.peak_memory()]), file=answers, flush=True)


# ---- The contest -----------------------------------------------------------------------------------------


def contest(names, folder, threads, targets, rounds, steps):
    """contender -> its facts: the median of each round's steps, its first loss, the bytes it held."""
    found, players = {}, {}
    try:
        for name in names:  # one after the other: to load and compile takes more than a step does
            env = {**environment(threads), **(KEEP_MEMORY if name in PEERS else {})}
            player = Lines("bench.finetune", (name, folder, threads, targets), env)
            answer = player.turn(2)
            if answer is None:
                player.close()
                program.note(f"{name}: not there, or not enough memory")
                continue
            program.note(f"{name}: ready, {1e3 * answer[0][-1]:.0f} ms for its second step")
            players[name], found[name] = player, {"seconds": [], "loss": answer[1], "bytes": answer[2]}
        for _ in range(rounds):
            for name, player in players.items():
                times, _, held = player.turn(
                    1 + steps
                )  # the first finds the caches as the one before left them
                found[name]["seconds"].append(statistics.median(times[1:]))
                found[name]["bytes"] = held
    finally:
        for player in players.values():
            player.close()
    first = next(iter(found.values()))["loss"]
    for name, facts in found.items():
        if not abs(facts["loss"] - first) <= TOLERANCE * abs(first):
            raise UserError(f"{name} begins with a loss of {facts['loss']}, the others with {first}")
    return found


def ratio(ours, theirs):
    """The median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(ours, theirs))


def as_text(model, threads, targets, found):
    lines = [f"{model}, B{B} T{T}, lora:{RANK} on {targets}, {threads} thread{'s' * (threads > 1)}"]
    fastest = min(
        (name for name in found if name in PEERS),
        key=lambda name: statistics.median(found[name]["seconds"]),
        default=None,
    )
    for name, facts in found.items():
        held = (
            f"{1e3 * statistics.median(facts['seconds']):9.0f} ms   {facts['bytes'] / 2**30:6.2f} GiB at most"
        )
        ratios = [
            f"{ratio(facts['seconds'], found[other]['seconds']):.2f} of {other}"
            for other in ("full", fastest)
            if other in found and other != name and name.startswith("lora")
        ]
        lines.append(f"  {name:<14}{held}   {', '.join(ratios)}".rstrip())
    return "\n".join(lines)


def make_weights(model, folder):
    """Random weights of this size, as a folder of transformers."""
    if not (Path(folder) / "config.json").exists():
        write(Path(folder), GPT2(GPT2Config.preset(model), seed=0))
    return str(folder)


def main(argv):
    if argv[:1] == ["--work"]:
        return work(argv[1], argv[2], int(argv[3]), argv[4])
    parser = program.parser("bench.finetune", "Time a step of adapters beside the full step and beside peft.")
    add = parser.add_argument
    add(
        "--models",
        metavar="NAME,...",
        default="gpt2,gpt2-medium",
        help=f"of {', '.join(MODELS)} (default gpt2,gpt2-medium)",
    )
    add(
        "--contenders",
        metavar="NAME,...",
        default=",".join(CONTENDERS),
        help=f"who takes part (default {', '.join(CONTENDERS)})",
    )
    add("--targets", metavar="NAME,...", default="c_attn", help="matrices with an adapter (default c_attn)")
    add(
        "--rounds",
        metavar="N",
        type=program.positive(int),
        default=7,
        help="rounds, in each of which all take a turn (default 7)",
    )
    add(
        "--steps",
        metavar="N",
        type=program.positive(int),
        default=2,
        help="of training in a turn that count (default 2)",
    )
    add(
        "--weights",
        metavar="FOLDER",
        default="",
        help="where weights are kept for the next time (default: nowhere)",
    )
    options = parser.parse_args(argv)
    names = _some(options.contenders, CONTENDERS, "--contenders")
    models = _some(options.models, MODELS, "--models")
    facts = machine.describe()
    program.say(options, program.machine_line(facts))
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        for model in models:
            folder = make_weights(model, Path(options.weights or temporary, model))
            for threads in program.thread_counts(options.threads):
                found = contest(names, folder, threads, options.targets, options.rounds, options.steps)
                results.append({"model": model, "threads": threads, "contenders": found})
                program.say(options, as_text(model, threads, options.targets, found))
    program.write_json(options, {"benchmark": "finetune", "machine": facts, "results": results})
    return 0


def _some(text, among, flag):
    """The names in a comma-separated list. Raises UserError for one that there is not."""
    names = text.split(",")
    for name in names:
        if name not in among:
            raise UserError(f"{flag}: there is no {name!r}, expected some of {', '.join(among)}")
    return names


if __name__ == "__main__":
    program.run(main)
