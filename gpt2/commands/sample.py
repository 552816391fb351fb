"""Generate text from a trained model, one token at a time."""

import argparse
import json
import os
import select
import stat
import sys
import warnings
from functools import partial
from pathlib import Path

from gpt2 import cli
from gpt2.autodiff import get_threads, set_threads
from gpt2.data.conversations import ANSWERS, Template
from gpt2.data.tokenizer import END_OF_TEXT
from gpt2.errors import UserError, os_errors
from gpt2.model.decoder import SlowGeneration, slowness, unread
from gpt2.parallel.cores import threads_each
from gpt2.sampling import check_options, check_samples, write_samples
from gpt2.storage import runs
from gpt2.train.flags import check_text, read_toml
from gpt2.train.settings import Settings
from gpt2.weights import pretrained

PATIENCE = 1.0  # seconds to wait for the first byte of a pipe

EXAMPLES = (
    ('gpt2 sample --prompt "ROMEO:"', "continue a text, with the newest run in runs/"),
    ("gpt2 sample --run runs/mine --temperature 0 --max-tokens 50", "always the likeliest token"),
    ('gpt2 sample --init gpt2 --prompt "The meaning of life is"', "with GPT-2's released weights"),
    ('gpt2 sample --prompt "Once" --samples 4 --stop "THE END"', "four texts, each up to a stop string"),
    ('gpt2 sample --prompt "Once" --max-tokens 5 --logprobs 3', "as JSON, with log-probabilities"),
    ("git log -1 --format=%s | gpt2 sample --json", "the prompt from a pipe, the text as JSON"),
    ('gpt2 sample --chat --prompt "How are you?"', "the answer of a model trained on conversations"),
)


def parser() -> cli.Parser:
    command = cli.Parser("sample", "Generate text from a trained model.", EXAMPLES)
    cli.add_weights(command)
    add = command.add_argument
    add("--prompt", default="", help="text to continue (default: the start of a text)")
    add("--prompt-file", default="", metavar="FILE", help="read the prompt from a file, - for standard input")
    about = "continuations, generated as a batch (default: 1)"
    add("--samples", type=int, default=1, metavar="N", help=about)
    about = "end a continuation at this text; may be repeated"
    add("--stop", action="append", default=[], metavar="TEXT", help=about)
    add("--max-tokens", type=int, default=200, help="tokens to generate (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="0 takes the likeliest token (default: %(default)s)")
    add("--top-k", type=int, default=200, help="draw from the k likeliest; 0: all (default: %(default)s)")
    about = "draw from the likeliest with total p (default: %(default)s)"
    add("--top-p", type=float, default=1.0, help=about)
    about = "with the tokens that its tokenizer's template puts around the prompt, as BOS"
    add("--add-special-tokens", action="store_true", help=about)
    add("--chat", action="store_true", help="answer the prompt; without one, each line of standard input")
    add("--template", default="", metavar="TEXT", help="of messages, for --chat (default: the run's)")
    add("--seed", type=int, default=0, help="the same seed gives the same text (default: %(default)s)")
    add("--threads", type=int, default=0, metavar="N", help="for matrix products (default: one a core)")
    add("--json", action="store_true", help="print JSON: texts and tokens")
    more = "and the K likeliest tokens at each position (default: 0)"
    about = f"print JSON with log-probabilities in nats, too, {more}"
    add("--logprobs", type=int, nargs="?", const=0, metavar="K", help=about)
    return command


def _prompt(args):
    if not args.prompt_file:
        return args.prompt or ("" if args.chat else _piped())
    if args.prompt:
        raise UserError("--prompt and --prompt-file both give a prompt; give one of them")
    if args.prompt_file == "-" and sys.stdin is None:
        raise UserError("--prompt-file -: standard input is closed; name a file, or give a --prompt")
    with os_errors(f"--prompt-file {args.prompt_file}"):
        content = sys.stdin.buffer.read() if args.prompt_file == "-" else Path(args.prompt_file).read_bytes()
    return _decoded(content, f"--prompt-file {args.prompt_file}")


def _decoded(content, source):
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: not UTF-8 text (byte {error.start})") from None


def _piped():
    """The text that is piped into the command, without the line end that `echo` adds; "" if nothing is.

    Whoever started the command may hold a pipe open and write nothing, so it is not waited for longer than
    PATIENCE. Windows cannot look into a pipe: there --prompt-file - reads it.
    """
    try:
        kind = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or no file of the system
        return ""
    if os.name != "posix" or not (stat.S_ISFIFO(kind) or stat.S_ISREG(kind)):
        return ""
    if not select.select([sys.stdin], [], [], PATIENCE)[0]:
        return ""
    return _decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def _check(args):
    """Raise UserError for flags that are wrong, or do not go together."""
    if args.seed < 0:
        raise UserError(f"--seed {args.seed}: expected 0 or more")
    for flag, text in [("--prompt", args.prompt), *(("--stop", stop) for stop in args.stop)]:
        check_text(flag, text)
    if args.logprobs is not None and args.logprobs < 0:
        raise UserError(f"--logprobs {args.logprobs}: expected 0 or more")
    if not 0 <= args.threads <= 1024:
        raise UserError(f"--threads {args.threads}: expected 1 to 1024, or 0 for one a core")
    check_samples(args.samples)
    check_options(args.max_tokens, args.temperature, args.top_k, args.top_p)
    if args.chat and (args.samples > 1 or args.json or args.logprobs is not None):
        raise UserError("--chat gives one answer as text; leave out --samples, --json and --logprobs")
    if args.chat and args.add_special_tokens:
        raise UserError("--add-special-tokens has no effect with --chat, whose template has all tokens")
    if args.template and not args.chat:
        raise UserError("--template has no effect without --chat; give both, or neither")


def _run(args):
    _check(args)
    prompt = _prompt(args)
    set_threads(threads_each(1, args.threads))
    model, tokenizer = pretrained.load(args.run, args.init, args.checkpoint, args.layers, say=cli.tell)
    if slow := unread(model.description):
        print(f"note: {slowness(slow)}", file=sys.stderr)
        warnings.simplefilter("ignore", SlowGeneration)  # printed above
    names = "samples", "stop", "logprobs", "max_tokens", "temperature", "top_k", "top_p", "seed"
    options = {name: getattr(args, name) for name in names}
    if args.chat:
        _chat(args, model, tokenizer, prompt, options)
        return
    if args.add_special_tokens and not [*tokenizer.before, *tokenizer.after]:
        print("note: --add-special-tokens: this tokenizer has no template", file=sys.stderr)
    ids = tokenizer.encode(prompt, args.add_special_tokens)
    continued = partial(write_samples, model, tokenizer, ids, **options)
    if args.json or args.logprobs is not None:
        print(_as_json(tokenizer, prompt, continued()))
    elif args.samples == 1:
        text = [prompt]  # shown with the first piece, so that an error does not stand behind it

        def show(piece):
            print(*text, piece, sep="", end="", flush=True)
            text.clear()

        continued(show=show)
        print(*text)
    else:
        for number, sample in enumerate(continued(), 1):
            print(f"---- sample {number} of {args.samples} " + "-" * 40)
            print(prompt + sample.text)


def _chat(args, model, tokenizer, prompt, options):
    """Answer the prompt, or each line of standard input, knowing what was said before."""
    template = Template(args.template or template_of_run(args))
    options["stop"] = [template.end, END_OF_TEXT, *args.stop]
    messages: list[dict[str, str]] = []
    if not prompt and sys.stdin is None:
        raise UserError("--chat: standard input is closed; give a --prompt")
    sign = "> " if not prompt and sys.stdin.isatty() else ""  # that it is the user's turn
    print(sign, end="", flush=True)
    for said in [prompt] if prompt else sys.stdin:
        messages.append({"role": "user", "content": said.rstrip("\n") if not prompt else said})
        ids = template.prompt(tokenizer, messages)
        (answer,) = write_samples(model, tokenizer, ids, show=partial(print, end="", flush=True), **options)
        messages.append({"role": ANSWERS, "content": answer.text})
        print(f"\n{sign}", end="", flush=True)


def template_of_run(args: argparse.Namespace) -> str:
    """The template that the run of --run was trained with, or "" if weights are named otherwise."""
    if args.init:
        return ""
    return read_toml(runs.existing(args.run) / runs.SETTINGS, Settings).get("template", "")


def _as_json(tokenizer, prompt, samples):
    """The samples as JSON. `pieces` are the texts of single tokens, with U+FFFD for parts of a character."""
    results = []
    for sample in samples:
        pieces = [tokenizer.decode([token]) for token in sample.tokens]
        result = dict(text=sample.text, stopped=sample.stopped, tokens=sample.tokens, pieces=pieces)
        if len(sample.logprobs) == len(sample.tokens):
            result["logprobs"] = sample.logprobs
        if sample.top:
            result["top"] = [
                [{"token": k, "piece": tokenizer.decode([k]), "logprob": logprob} for k, logprob in likeliest]
                for likeliest in sample.top
            ]
        results.append(result)
    return json.dumps({"prompt": prompt, "samples": results})


def _interruptible(args):
    before = get_threads()
    try:
        _run(args)
    except KeyboardInterrupt:
        print()  # ends the line that was being written
        raise
    finally:
        set_threads(before)


main = cli.command(parser, _interruptible)
