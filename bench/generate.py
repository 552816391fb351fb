"""Time text generation by this engine and transformers, beside a copy of as many bytes as the weights.

    python -m bench.generate --model gpt2-medium --threads 1,2 --rounds 20

Both load the same random weights, cache keys and values, and choose the likeliest token, at batch 1. A
token's time is that of 1 + N tokens less that of one, divided by N, which excludes the prompt. The copy,
timed in the same rounds, is a bound: every token reads all weights.
"""

import tempfile
from pathlib import Path

import numpy as np

import gpt2
from bench.harness import contest, program, rates
from bench.harness.contenders import Contender
from bench.harness.worker import Work, seconds_of
from gpt2 import autodiff as ad
from gpt2.data import tokenizer
from gpt2.model import GPT2Config
from gpt2.weights import pretrained

MODULE = "bench.generate"
PROMPT = 16  # tokens
CONTENDERS = {
    "gpt2": Contender("gpt2", MODULE, "gpt2"),
    "transformers": Contender("transformers", MODULE, "transformers", "transformers"),
    "copy": Contender("a copy of as many bytes", MODULE, "copy"),
}


def ours(folder, threads, prompt):
    """generate(count) -> tokens, by gpt2.generate."""
    ad.set_threads(threads)
    model = gpt2.load(folder)
    return lambda count: list(gpt2.generate(model, prompt, count, temperature=0))


def transformers(folder, threads, prompt):
    """generate(count) -> tokens, by transformers' GPT2LMHeadModel."""
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    fixed = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
    fixed["attention_mask"] = torch.ones(1, PROMPT, dtype=torch.long)

    @torch.inference_mode()
    def generate(count):
        out = model.generate(torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, **fixed)
        return out[0, PROMPT:].tolist()

    return generate


def work(module, variant, threads, folder, count):
    """The Work of a contender's process: seconds per token over `count` tokens, and the tokens."""
    config = pretrained.find_config(folder)
    if variant == "copy":
        ad.set_threads(threads)
        copy = rates.copy_of(4 * config.num_parameters // 2)
        return Work(lambda steps: {"times": {"step": [seconds_of(copy, count)]}, "tokens": None})
    prompt = np.random.default_rng(0).integers(0, config.vocab_size, PROMPT).tolist()
    generate = {"gpt2": ours, "transformers": transformers}[variant](folder, threads, prompt)

    def turn(steps):
        tokens = []
        one, more = (seconds_of(lambda n=n: tokens.append(generate(n))) for n in (1, 1 + count))
        return {"times": {"step": [(more - one) / count]}, "tokens": tokens[-1]}

    return Work(turn)


def main(argv):
    parser = program.parser(MODULE, "Time generation beside transformers and beside a copy of the weights.")
    parser.add_argument("--model", metavar="NAME", default="gpt2", help="a preset (default gpt2)")
    program.number(parser, "--tokens", 32, "generated in a turn")
    program.number(parser, "--rounds", 11, "rounds, in each of which every contender takes a turn")
    options = parser.parse_args(argv)
    config = GPT2Config.preset(options.model)
    report = program.Report(options, "generate", model=options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary, "model"))
        model = gpt2.GPT2(config, seed=0)
        model.flat_params *= 3.0  # so that rounding does not decide which token is likeliest
        gpt2.save(model, folder, tokenizer.byte() if config.vocab_size == 256 else None)
        del model
        for threads in program.thread_counts(options.threads):
            settings = dict(agree=lambda first: first["tokens"], folder=folder, count=options.tokens)
            result = contest.measured(MODULE, CONTENDERS, threads, options.rounds, **settings)
            compared = {"gpt2": ["transformers", "copy"]}
            report.add(result, contest.as_text(f"{options.model}, a token", result, CONTENDERS, compared))
    report.write()


if __name__ == "__main__":
    program.run(main)
