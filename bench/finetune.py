"""Time a training step of LoRA adapters, of the full model, and of peft on PyTorch.

    python -m bench.finetune
    python -m bench.finetune --models gpt2-xl --contenders lora,peft,peft-compile --rounds 3

All contenders load the same random weights of the true size and train on one sequence of 256 tokens a step
with AdamW. peft runs on PyTorch as tuned in bench.step, eager and compiled. Contenders take turns in
processes of their own; the result is the median of the ratios within a round. The first losses must agree.
Memory is the process's peak, pages of mapped files included.
"""

import math
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from bench.harness import contenders, program, ratios
from bench.harness.contenders import KEEP_MEMORY, Contender
from bench.harness.sizes import BETAS, CLIP, EPS, LR, Size, batches
from bench.harness.turns import Contest
from bench.harness.worker import training
from gpt2 import AdamW
from gpt2.autodiff import set_threads
from gpt2.commands.convert import write
from gpt2.errors import UserError, counted
from gpt2.model import GPT2, GPT2Config
from gpt2.model.tuning import Tuning
from gpt2.weights import pretrained

B, T = 1, 256
TOLERANCE = 1e-4  # of the first loss, relative: float32 sums in different orders
RANK = 8
MODELS = ("gpt2", "gpt2-medium", "gpt2-xl")


class Ours:
    """A step of this engine."""

    def __init__(self, folder, threads, train, targets, backward="whole"):
        set_threads(threads)
        weights = pretrained.find(folder)
        tuning = Tuning(train, lora_targets=targets)
        self.model = GPT2(weights.config, backward, seed=None, train=tuning)
        weights.into(self.model)
        self.optimizer = AdamW(self.model, lr=LR, betas=BETAS, eps=EPS)

    def step(self, tokens, targets):
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

    def step(self, tokens, targets):
        torch = self.torch
        logits = self.model(input_ids=torch.from_numpy(tokens), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()


PEERS = ("peft", "peft-compile")
CONTENDERS = {
    **{name: Contender(name, "bench.finetune", name) for name in ("full", "lora", "lora-manual")},
    **{name: Contender(name, "bench.finetune", name, "peft", KEEP_MEMORY) for name in PEERS},
}


def work(module, variant, threads, folder, targets):
    """The Work of a contender's process."""
    if variant in PEERS:
        trainer = Peft(folder, threads, targets, compiled=variant == "peft-compile")
    else:
        train = "all" if variant == "full" else f"lora:{RANK}"
        trainer = Ours(folder, threads, train, targets, None if variant == "lora-manual" else "whole")
    return training(trainer, batches(Size("", pretrained.find_config(folder), B, T)))


# ---- The contest -----------------------------------------------------------------------------------------


def set_up(player, folder, targets):
    """Run two steps. The first one's loss is compared."""
    player.ask(do="work", make="bench.finetune:work", folder=folder, targets=targets)
    answer = player.ask(do="turn", steps=2)
    program.note(f"{player.name}: ready, {1e3 * answer['times']['step'][-1]:.0f} ms for its second step")
    return {"loss": answer["losses"][0], "peak": player.ask(do="peak")["bytes"]}


def measure(names, folder, threads, targets, rounds, steps):
    """One table as a dict: each contender's median step of each round, first loss and peak bytes."""
    players = {name: CONTENDERS[name] for name in names}
    with Contest(players, threads, partial(set_up, folder=folder, targets=targets)) as contest:
        contest.play(rounds, math.inf, block=steps, long_s=math.inf)
        results = {
            name: {
                "seconds": ratios.of_rounds(contest.samples[name]["step"]),
                "loss": contest.facts[name]["loss"],
                "bytes": contest.peak(name),
            }
            for name in names
            if name in contest.samples
        }
    check(results)
    return {"contenders": results, "absent": contest.absent, "load": contest.load}


def check(results):
    """Raise UserError unless all contenders have the same first loss."""
    first = next(iter(results.values()), {}).get("loss")
    for name, facts in results.items():
        if not abs(facts["loss"] - first) <= TOLERANCE * abs(first):
            raise UserError(f"{name} begins with a loss of {facts['loss']}, others with {first}")


def as_text(result):
    timed = result["contenders"]
    threads = counted(result["threads"], "thread")
    lines = [f"{result['model']}, B{B} T{T}, lora:{RANK} on {result['targets']}, {threads}"]
    peers = {name: median(timed[name]["seconds"]) for name in timed if name in PEERS}
    fastest = min(peers, key=peers.get, default=None)
    for name, facts in timed.items():
        seconds = facts["seconds"]
        held = f"{1e3 * median(seconds):9.0f} ms   {facts['bytes'] / 2**30:6.2f} GiB at most"
        by = [
            f"{median([a / b for a, b in zip(seconds, timed[other]['seconds'])]):.2f} of {other}"
            for other in ("full", fastest)
            if other in timed and other != name and name.startswith("lora")
        ]
        lines.append(f"  {name:<14}{held}   {', '.join(by)}".rstrip())
    return "\n".join([*lines, *contenders.absences(result["absent"]), program.load_line(result["load"])])


def make_weights(model, folder):
    """Write random weights of this size to a folder, in transformers' format, unless they are there."""
    if not (Path(folder) / "config.json").exists():
        write(Path(folder), GPT2(GPT2Config.preset(model), seed=0))
    return str(folder)


def main(argv):
    parser = program.parser("bench.finetune", "Time a step of adapters beside the full step and beside peft.")
    program.names(parser, "--models", "gpt2,gpt2-medium", f"of {', '.join(MODELS)}")
    program.names(parser, "--contenders", ",".join(CONTENDERS), "contenders")
    program.names(parser, "--targets", "c_attn", "matrices with an adapter")
    program.number(parser, "--rounds", 7, "rounds, in each of which every contender takes a turn")
    program.number(parser, "--steps", 2, "counted steps in a turn")
    program.text(parser, "--weights", "FOLDER", "", "folder to keep the weights in (default: none)")
    options = parser.parse_args(argv)
    names = contenders.find(options.contenders, (), CONTENDERS)
    models = contenders.find(options.models, (), MODELS, "--models")
    report = program.Report(options, "finetune")
    with tempfile.TemporaryDirectory() as temporary:
        for model in models:
            folder = make_weights(model, Path(options.weights or temporary, model))
            for threads in program.thread_counts(options.threads):
                result = {"model": model, "threads": threads, "targets": options.targets}
                result |= measure(names, folder, threads, options.targets, options.rounds, options.steps)
                report.add(result, as_text(result))
    report.write()
    return 0


if __name__ == "__main__":
    program.run(main)
