"""Llama in plain NumPy: forwards alone, no backward anywhere. The compiler derives it.

    python examples/llama.py --steps 300                      trains on tinyshakespeare, then writes some
    python examples/llama.py --weights FOLDER --steps 20      from what transformers has written into FOLDER

Touvron et al. 2023, of RMSNorm (Zhang and Sennrich 2019), rotary positions (Su et al. 2021), SwiGLU (Shazeer
2020) and grouped queries (Ainslie et al. 2023). Tensors have the names and shapes that `LlamaForCausalLM` of
transformers gives them.
"""

import json
import math
import sys
import time
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import numpy as np

from gpt2 import AdamW, cli
from gpt2 import autodiff as ad
from gpt2.data.corpora import prepare
from gpt2.data.tokens import Loader, evenly, read_tokens
from gpt2.errors import UserError
from gpt2.hints import typed
from gpt2.model.optimizer import cosine_lr
from gpt2.parallel.cores import cores
from gpt2.parallel.shares import Shares
from gpt2.sampling import TokenDraw
from gpt2.weights import bfloat16

# ---- The model -------------------------------------------------------------------------------------------

QUERY_BLOCK = 128  # queries that are taken at once: they need no keys that come after the last of them


@dataclass(frozen=True)
class Config:
    """The shape of a model, in the names of transformers' config.json. The defaults are those of `Llama`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 2048


def shaped(vocab_size, L, C, NH, NKV, **more):
    """The Config of L blocks of C channels. Their three matrices of hidden layers have about as many numbers
    as the two of GPT-2."""
    return Config(vocab_size, C, -(-8 * C // 96) * 32, L, NH, NKV, C // NH, **more)


def rmsnorm(x, weight, eps):
    """Each row of x (..., C) divided by its root mean square, times weight (C,)."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotated(x, start, theta):
    """x (..., T, HS), channels j and j + HS/2 as points of a plane, turned by position * theta^(-2j/HS)."""
    T, half = x.shape[-2], x.shape[-1] // 2
    angles = np.arange(start, start + T)[:, None] * theta ** (-np.arange(half) / half)  # (T, HS/2)
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(x, w, c, start, kept):
    """Causal attention of x (B, T, C) from position `start` on: several heads share keys and values.

    w     a weight of this block by name
    kept  None, or keys and values of all positions before: a list, which is given those of x besides
    """
    B, T, _ = x.shape

    def heads(name, count):  # (B, count, T, HS)
        return (x @ w(name).T).reshape(B, T, count, c.head_dim).transpose(0, 2, 1, 3)

    q = rotated(heads("self_attn.q_proj", c.num_attention_heads), start, c.rope_theta) * c.head_dim**-0.5
    k = rotated(heads("self_attn.k_proj", c.num_key_value_heads), start, c.rope_theta)
    v = heads("self_attn.v_proj", c.num_key_value_heads)
    if kept is not None:
        k, v = kept[:] = [np.concatenate(pair, axis=-2) for pair in zip(kept, (k, v))] if kept else [k, v]
    q = q.reshape(B, c.num_key_value_heads, -1, T, c.head_dim)  # (B, NKV, heads of a group, T, HS)
    k, v = k[:, :, None], v[:, :, None]  # one for all heads of a group
    parts = []
    for t in range(0, T, QUERY_BLOCK):
        rows = q[..., t : t + QUERY_BLOCK, :]
        n, seen = rows.shape[-2], start + t + rows.shape[-2]
        ahead = np.where(np.tri(n, seen, start + t, dtype=bool), 0.0, -1e30).astype(x.dtype)
        scores = rows @ k[..., :seen, :].swapaxes(-1, -2) + ahead
        exps = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
        parts.append((exps @ v[..., :seen, :]) / np.sum(exps, axis=-1, keepdims=True))
    y = np.concatenate(parts, axis=-2)
    return y.transpose(0, 3, 1, 2, 4).reshape(B, T, -1) @ w("self_attn.o_proj").T


def swiglu(x, w):
    """silu(gate) * up, projected back. silu(a) = a / (1 + exp(-a)), by tanh, with which nothing overflows."""
    gate, up = x @ w("mlp.gate_proj").T, x @ w("mlp.up_proj").T
    return (0.5 * gate * (1.0 + np.tanh(0.5 * gate)) * up) @ w("mlp.down_proj").T


def forward(params, tokens, c, start=0, kept=None):
    """Logits (B, T, V) of tokens (B, T) at the positions from `start` on; kept: a list for each block."""
    x = params["model.embed_tokens.weight"][tokens]
    for l in range(c.num_hidden_layers):

        def w(name, l=l):
            return params[f"model.layers.{l}.{name}.weight"]

        normed = rmsnorm(x, w("input_layernorm"), c.rms_norm_eps)
        x = x + attention(normed, w, c, start, kept and kept[l])
        x = x + swiglu(rmsnorm(x, w("post_attention_layernorm"), c.rms_norm_eps), w)
    head = "model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"
    return rmsnorm(x, params["model.norm.weight"], c.rms_norm_eps) @ params[head].T


def loss_fn(params, tokens, targets, c):
    """The mean loss in nats a token: what is differentiated."""
    logits = forward(params, tokens, c)
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    at_target = np.take_along_axis(shifted, targets[..., None], axis=-1)[..., 0]
    return np.mean(np.log(np.sum(np.exp(shifted), axis=-1)) - at_target)


def shapes(c):
    """Name -> shape of every tensor, as transformers has them."""
    C, F, q, kv = c.hidden_size, c.intermediate_size, c.num_attention_heads, c.num_key_value_heads
    block = {
        "input_layernorm": (C,),
        "self_attn.q_proj": (q * c.head_dim, C),
        "self_attn.k_proj": (kv * c.head_dim, C),
        "self_attn.v_proj": (kv * c.head_dim, C),
        "self_attn.o_proj": (C, q * c.head_dim),
        "post_attention_layernorm": (C,),
        "mlp.gate_proj": (F, C),
        "mlp.up_proj": (F, C),
        "mlp.down_proj": (C, F),
    }
    table = {"model.embed_tokens": (c.vocab_size, C)}
    table |= {f"model.layers.{l}.{n}": s for l in range(c.num_hidden_layers) for n, s in block.items()}
    table |= {"model.norm": (C,)} | ({} if c.tie_word_embeddings else {"lm_head": (c.vocab_size, C)})
    return {f"{name}.weight": shape for name, shape in table.items()}


class Llama:
    """Parameters and gradients, views of one flat buffer each, as optimizer and teams of gpt2 take them."""

    def __init__(self, config, seed=0):
        self.config, self.decayed = config, []
        sizes = [math.prod(shape) for shape in shapes(config).values()]
        self.flat_params, self.flat_grads = (np.zeros(sum(sizes), np.float32) for _ in range(2))
        self.params, self.grads = self.views(self.flat_params), self.views(self.flat_grads)
        rng, start = np.random.default_rng(seed), 0
        for x in self.params.values():
            if x.ndim == 2:  # matrices alone get weight decay
                self.decayed.append((start, start + x.size))
            if seed is not None:
                x[...] = 1.0 if x.ndim == 1 else 0.02 * rng.standard_normal(x.shape, np.float32)
            start += x.size
        # math="fast": sums and products may be put together in other ways
        self.program = ad.FixedPair(self._loss, ad.Options(math="fast"), "loss", rate=1.0, ample=256 << 20)

    def views(self, flat):
        """Name -> tensor, each a part of the flat buffer."""
        parts = np.split(flat, np.cumsum([math.prod(shape) for shape in shapes(self.config).values()])[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes(self.config).items(), parts)}

    @property
    def num_parameters(self):
        return self.flat_params.size

    def twin(self):
        """A model with these parameters and gradients of its own, for another thread."""
        other = copy(self)
        other.flat_grads = np.zeros_like(self.flat_grads)
        other.grads = self.views(other.flat_grads)
        return other

    def _loss(self, *arrays):
        return loss_fn(dict(zip(self.params, arrays)), *arrays[-2:], self.config)

    def loss_and_grads(self, tokens, targets, scale=1.0, accumulate=False):
        """The mean loss; fills grads with scale times its gradient, or adds that to them."""
        buffers = (*self.grads.values(), None, None)
        arrays = (*self.params.values(), tokens, targets)
        return float(self.program.both(np.array(scale, np.float32), *arrays, out=buffers, add=accumulate)[0])

    def loss(self, tokens, targets):
        return float(loss_fn(self.params, tokens, targets, self.config))

    def generate(self, tokens, count, temperature=0.8, top_k=200, seed=0, among=None):
        """Yields `count` tokens that continue `tokens`. Keys and values are kept as long as there is room.

        among   the first so many tokens of the vocabulary alone are chosen: those that a tokenizer knows
        """
        rng, window, unread = np.random.default_rng(seed), list(tokens), list(tokens)
        kept, length = [[] for _ in range(self.config.num_hidden_layers)], 0
        for _ in range(count):
            if length + len(unread) > self.config.max_position_embeddings:  # the newer half is read again
                window = unread = window[-max(1, self.config.max_position_embeddings // 2) :]
                kept, length = [[] for _ in kept], 0
            logits = forward(self.params, np.array([unread]), self.config, length, kept)[0, -1, :among]
            length += len(unread)
            unread = [TokenDraw(len(logits))(logits, temperature, top_k, 1.0, rng)]
            window = window + unread
            yield unread[0]


# ---- Files of transformers -------------------------------------------------------------------------------

# Fields of config.json that change the arithmetic, and the one value with which it is that of this file
EXPECTED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "pretraining_tp": 1,
}
# Fields that change nothing of it. What is in neither table, and is no field of Config, is refused.
SILENT = (
    "architectures transformers_version _name_or_path torch_dtype dtype use_cache initializer_range "
    "bos_token_id eos_token_id pad_token_id"
).split()
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_config(folder):
    """The Config that a folder's config.json describes. UserError for what this file does not compute."""
    path = Path(folder, "config.json")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; expected a folder that transformers wrote") from None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise UserError(f"{path}: not a JSON object")
    said = {name: value for name, value in said.items() if value is not None and name not in SILENT}
    take_rope(path, said)
    for name, value in EXPECTED.items():
        if (other := said.pop(name, value)) != value:
            raise UserError(f"{path}: {name} is {other!r}, and only {value!r} is computed here")
    types = {f.name: f.type for f in fields(Config)}
    for name, value in said.items():
        if name not in types:
            raise UserError(f"{path}: {name} is a field that is not understood here")
        if type(value) is not types[name] and not (types[name] is float and type(value) is int):
            raise UserError(f"{path}: {name} is {value!r}, expected {types[name].__name__}")
        if types[name] is not bool and not 0 < value < float("inf"):
            raise UserError(f"{path}: {name} is {value!r}, expected more than 0")
    if missing := [f.name for f in fields(Config) if f.default is MISSING and f.name not in said]:
        optional = {"num_key_value_heads", "head_dim"}
        if missing := [name for name in missing if name not in optional]:
            raise UserError(f"{path}: lacks {missing[0]}")
        said.setdefault("num_key_value_heads", said["num_attention_heads"])
        said.setdefault("head_dim", said["hidden_size"] // said["num_attention_heads"])
    c = Config(**said)
    if c.num_attention_heads % c.num_key_value_heads:
        raise UserError(f"{path}: num_key_value_heads is no divisor of num_attention_heads")
    if c.head_dim % 2 or not c.head_dim:
        raise UserError(f"{path}: head_dim is {c.head_dim}, expected an even number")
    return c


def take_rope(path, said):
    """Leave rope_theta among the fields of config.json, and take away what says that positions are not
    scaled. It stands beside rope_scaling, or in rope_parameters, which transformers 5 writes."""
    for field in ("rope_parameters", "rope_scaling"):
        inner = said.pop(field, {})
        if not isinstance(inner, dict):
            raise UserError(f"{path}: {field} is {inner!r}, expected an object")
        for name, value in inner.items():
            if name == "rope_theta" and said.setdefault(name, value) != value:
                raise UserError(f"{path}: rope_theta is there twice, {said[name]!r} and {value!r}")
            if name != "rope_theta" and (name not in ("rope_type", "type") or value != "default"):
                raise UserError(
                    f"{path}: {field} has {name} {value!r}; only plain positions are computed here"
                )


def read_weights(folder, params):
    """Fill `params` from the folder's .safetensors files. UserError unless they hold just these tensors."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        for name, tensor in read_tensors(path):
            if name not in params or name in found:
                raise UserError(f"{path}: tensor {name} is there twice, or is none of this model's")
            if tensor.shape != params[name].shape:
                raise UserError(f"{path}: {name} has shape {tensor.shape}, expected {params[name].shape}")
            found[name] = tensor
    if missing := sorted(params.keys() - found.keys()):
        raise UserError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    for name, tensor in found.items():
        params[name][...] = bfloat16.to_float32(tensor) if tensor.dtype == np.uint16 else tensor


def read_tensors(path):
    """(name, array) of each tensor of a .safetensors file: eight bytes give the length of the table, which
    gives where each tensor's bytes lie after it. bfloat16 comes as uint16."""
    try:
        content = np.memmap(path, np.uint8, "r").view(np.ndarray)
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        table = json.loads(content[8:start].tobytes())
        table.pop("__metadata__", None)
        pieces = {name: (e["dtype"], e["data_offsets"], e["shape"]) for name, e in table.items()}
        covered = sorted(offsets for _, offsets, _ in pieces.values())
        if [0, *(end for _, end in covered)] != [*(begin for begin, _ in covered), content.size - start]:
            raise ValueError("its tensors do not fill it")
        for name, (kind, (begin, end), shape) in pieces.items():
            if kind not in TYPES:
                raise UserError(f"{path}: {name} is of type {kind}, expected one of {', '.join(TYPES)}")
            yield name, content[start + begin : start + end].view(TYPES[kind]).reshape(shape)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no safetensors file, or damaged ({error})") from None


# ---- The program -----------------------------------------------------------------------------------------

SHAPE = {"n_layer": 4, "n_embd": 256, "n_head": 4, "n_kv_head": 2}  # where no weights are given


def parser():
    made = cli.Parser("llama", __doc__.split("\n\n")[0], prog=typed("python examples/llama.py"))
    add = made.add_argument
    add("--weights", default="", metavar="FOLDER", help="a LlamaForCausalLM that transformers wrote")
    for name, value in SHAPE.items():
        add(f"--{name.replace('_', '-')}", type=int, help=f"of a new model (default: {value})")
    add("--tied", action="store_true", help="a new model's head is its embedding")
    add(
        "--data",
        default="auto",
        metavar="TEXT",
        help="a corpus, or a text (default: %(default)s)",
    )
    add("--tokenizer", default="", help="gpt2, byte, char or bpe:N (default: char)")
    add("--batch-size", type=int, default=8, metavar="B", help="(default: %(default)s)")
    add("--block-size", type=int, default=128, metavar="T", help="(default: %(default)s)")
    add("--steps", type=int, default=300, help="(default: %(default)s)")
    add("--lr", type=float, default=1e-3, help="the largest learning rate (default: %(default)s)")
    add("--threads", type=int, default=cores(), help="(default: the number of cores)")
    add("--prompt", default="", help="what the sample continues")
    add("--max-tokens", type=int, default=200, help="length of the sample (default: %(default)s)")
    add("--temperature", type=float, default=0.8, help="0: always the likeliest token (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    return made


def made_model(args, words):
    """The model that the arguments ask for."""
    given = {name: getattr(args, name) for name in SHAPE if getattr(args, name) is not None}
    if args.weights:
        if given or args.tied:
            raise UserError("--weights: brings the shape of the model; leave out --n-... and --tied")
        config = read_config(args.weights)
        for said, has, flag, needs in (
            ("tokens", config.vocab_size, f"the tokenizer {words.name}", words.vocab_size),
            ("positions", config.max_position_embeddings, "--block-size", args.block_size),
        ):
            if has < needs:
                raise UserError(f"--weights {args.weights}: {has} {said}, {flag} needs {needs}")
        model = Llama(config, seed=None)
        read_weights(args.weights, model.params)
        return model
    L, C, NH, NKV = (SHAPE | given).values()
    if min(L, C, NH, NKV) < 1 or C % (2 * NH) or NH % NKV:
        raise UserError(f"{C} channels, {NH} heads, {NKV} of keys: expected multiples (heads of even width)")
    more = {"tie_word_embeddings": args.tied, "max_position_embeddings": max(2048, args.block_size)}
    return Llama(shaped(words.vocab_size, L, C, NH, NKV, **more), args.seed)


def train(model, data, args):
    """--steps steps of AdamW on the training tokens; the loss on the others at the end."""
    # A share of the batch for each thread, or the threads share out every product
    team = Shares(model, AdamW(model), 1 if args.batch_size % args.threads else args.threads)
    batches = Loader(read_tokens(data.train), args.batch_size, args.block_size, args.seed)
    for step in range(args.steps):
        begin = time.perf_counter()
        rate = cosine_lr(step, lr=args.lr, min_lr=0.1 * args.lr, warmup=args.steps // 20, steps=args.steps)
        loss, norm = team.step([batches.next_batch()], rate)
        if not math.isfinite(loss + norm):
            raise UserError(f"step {step}: loss or gradient is not finite; try --lr below {args.lr:g}")
        if step % max(1, args.steps // 10) == 0 or step == args.steps - 1:
            print(
                f"step {step:5}   loss {loss:.4f}   {1e3 * (time.perf_counter() - begin):.0f} ms", flush=True
            )
    held_out = evenly(read_tokens(data.val), args.batch_size, args.block_size, batches=8)
    print(f"validation loss {np.mean([model.loss(*batch) for batch in held_out]):.4f}")


def work(args):
    for name in ("batch_size", "block_size", "threads", "lr"):
        if not getattr(args, name) > 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected more than 0")
    for name in ("steps", "max_tokens", "temperature", "seed"):
        if not getattr(args, name) >= 0:
            raise UserError(f"--{name.replace('_', '-')} {getattr(args, name)}: expected 0 or more")
    ad.set_threads(args.threads)
    if args.weights and not args.tokenizer:
        raise UserError(
            "--weights: a folder's tokenizer is not read here; name the one that fits: --tokenizer"
        )
    data = prepare(args.data, args.tokenizer or "char")
    for note in data.notes:
        print(f"note: {note}")
    words = data.tokenizer
    model = made_model(args, words)
    print(f"{model.flat_params.size:,} parameters, {words.vocab_size:,} tokens", flush=True)
    prompt = words.encode(args.prompt).tolist() or [words.start]
    if args.steps:
        train(model, data, args)
    made = model.generate(prompt, args.max_tokens, args.temperature, seed=args.seed, among=words.vocab_size)
    print(args.prompt + words.decode(made))


if __name__ == "__main__":
    sys.exit(cli.run(parser(), work, None))
