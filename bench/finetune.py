"""Time a training step of LoRA adapters, of the full model, and of peft on PyTorch.

    python -m bench.finetune --models gpt2-xl --contenders lora,peft,peft-compile --rounds 3

All contenders load the same random weights of the true size and train on one sequence of 256 tokens a step
with AdamW. peft runs on PyTorch as tuned in bench.step, eager and compiled. The first losses must agree.
Memory is the process's peak, pages of mapped files included.
"""

import math
import tempfile
from pathlib import Path

from bench.harness import contenders, contest, program
from bench.harness.contenders import KEEP_MEMORY, Contender
from bench.harness.engine import Trainer
from bench.harness.sizes import BETAS, EPS, LR, Size, batches
from bench.harness.worker import training
from gpt2 import AdamW
from gpt2.autodiff import set_threads
from gpt2.commands.convert import write
from gpt2.model import GPT2, GPT2Config
from gpt2.model.tuning import Tuning
from gpt2.weights import pretrained

MODULE = "bench.finetune"
B, T = 1, 256
TOLERANCE = 1e-4  # of the first loss, relative: float32 sums in different orders
RANK = 8
MODELS = ("gpt2", "gpt2-medium", "gpt2-xl")


def ours(variant, folder, threads, targets):
    """The trainer of this engine: all weights, or adapters, with the derived or the manual backward."""
    set_threads(threads)
    weights = pretrained.find(folder)
    tuning = Tuning("all" if variant == "full" else f"lora:{RANK}", lora_targets=targets)
    backward = None if variant == "lora-manual" else "whole"
    model = GPT2(weights.config, backward, seed=None, train=tuning)
    weights.into(model)
    return Trainer(model, AdamW(model, lr=LR, betas=BETAS, eps=EPS))


def peft(variant, folder, threads, targets):
    """The trainer of peft's adapters on transformers' GPT2LMHeadModel."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2LMHeadModel

    from bench.peers.pytorch import Trainer

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    base = GPT2LMHeadModel.from_pretrained(folder, attn_implementation="sdpa")
    settings = LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=targets.split(","), fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    model = get_peft_model(base, settings).train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=LR, betas=BETAS, eps=EPS, fused=True)
    compiled = torch.compile(model) if variant == "peft-compile" else model

    def loss(tokens, targets):
        logits = compiled(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Trainer(loss, params, optimizer)


PEERS = ("peft", "peft-compile")
CONTENDERS = {
    **{name: Contender(name, MODULE, name) for name in ("full", "lora", "lora-manual")},
    **{name: Contender(name, MODULE, name, "peft", KEEP_MEMORY) for name in PEERS},
}
COMPARED = dict.fromkeys(("lora", "lora-manual"), ("full", *PEERS))


def work(module, variant, threads, folder, targets):
    """The Work of a contender's process."""
    trainer = (peft if variant in PEERS else ours)(variant, folder, threads, targets)
    return training(trainer, batches(Size("", pretrained.find_config(folder), B, T)))


def make_weights(model, folder):
    """Write random weights of this size to a folder, in transformers' format, unless they are there."""
    if not (Path(folder) / "config.json").exists():
        write(Path(folder), GPT2(GPT2Config.preset(model), seed=0))
    return str(folder)


def main(argv):
    parser = program.parser(MODULE, "Time a step of adapters beside the full step and beside peft.")
    program.names(parser, "--models", "gpt2,gpt2-medium", f"of {', '.join(MODELS)}")
    program.names(parser, "--contenders", ",".join(CONTENDERS), "contenders")
    program.names(parser, "--targets", "c_attn", "matrices with an adapter")
    program.number(parser, "--rounds", 7, "rounds, in each of which every contender takes a turn")
    program.number(parser, "--steps", 2, "counted steps in a turn")
    program.text(parser, "--weights", "FOLDER", "", "folder to keep the weights in (default: none)")
    options = parser.parse_args(argv)
    names = contenders.find(options.contenders, (), CONTENDERS)
    players = {name: CONTENDERS[name] for name in names}
    models = contenders.find(options.models, (), MODELS, "--models")
    report = program.Report(options, "finetune")
    turns = dict(warm=2, block=options.steps, long_s=math.inf)
    with tempfile.TemporaryDirectory() as temporary:
        for model in models:
            folder = make_weights(model, Path(options.weights or temporary, model))
            for threads in program.thread_counts(options.threads):
                settings = dict(folder=folder, targets=options.targets, tolerance=TOLERANCE, **turns)
                settings["agree"] = lambda first: first["losses"][0]
                result = contest.measured(MODULE, players, threads, options.rounds, **settings)
                title = f"{model}, B{B} T{T}, lora:{RANK} on {options.targets}"
                text = contest.as_text(title, result, players, COMPARED)
                report.add({"model": model, "targets": options.targets, **result}, text)
    report.write()


if __name__ == "__main__":
    program.run(main)
