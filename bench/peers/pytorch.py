"""GPT-2 in PyTorch, as in nanoGPT: modules, fused attention, torch.optim.AdamW.

Variants:

    eager            PyTorch's defaults
    fused            AdamW with its fused kernel, which is not the default on a CPU
    tuned            fused, denormals flushed to zero, and malloc told to keep memory (KEEP_MEMORY in
                     bench/harness/contenders.py)
    compile, compile-tuned    eager and tuned through torch.compile
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

from bench.harness.engine import output_gradient
from bench.harness.sizes import BETAS, CLIP, EPS, LR, WEIGHT_DECAY, initial_weights

# ---- The layers, as functions ------------------------------------------------------------------------------


def encoder(tokens, wte, wpe):
    return F.embedding(tokens, wte) + wpe[: tokens.shape[1]]


def layernorm(inp, weight, bias):
    return F.layer_norm(inp, weight.shape, weight, bias, 1e-5)


def attention(qkv, *, num_heads):
    B, T, C3 = qkv.shape
    q, k, v = (x.view(B, T, num_heads, -1).transpose(1, 2) for x in qkv.split(C3 // 3, dim=-1))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, NH, T, HS)
    return y.transpose(1, 2).reshape(B, T, C3 // 3)


def gelu(inp):
    return F.gelu(inp, approximate="tanh")


def crossentropy(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


LAYERS = {
    "encoder": encoder,
    "layernorm": layernorm,
    "matmul": F.linear,
    "attention": attention,
    "gelu": gelu,
    "residual": torch.add,
    "crossentropy": crossentropy,
}


# ---- The model ---------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        C = config.n_embd
        self.num_heads = config.n_head
        self.ln1, self.ln2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.attproj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fcproj = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x):
        x = x + self.attproj(attention(self.qkv(self.ln1(x)), num_heads=self.num_heads))
        return x + self.fcproj(gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.lnf = nn.LayerNorm(config.n_embd)

    def forward(self, tokens, targets):
        positions = torch.arange(tokens.shape[1])
        x = self.wte(tokens) + self.wpe(positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)  # the head is tied to the embedding
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(config, tensors=None):
    """GPT with these weights, by default every contender's initial ones. PyTorch makes none."""
    with torch.device("meta"):
        gpt = GPT(config)
    state = {}
    for name, tensor in (tensors or initial_weights(config)).items():
        theirs = name if name in ("wte", "wpe") else name[:-1]  # ln1w, ln1b: ln1.weight, ln1.bias
        theirs += ".bias" if name.endswith("b") else ".weight"
        if hasattr(gpt, theirs.split(".")[0]):
            state[theirs] = tensor
        else:
            state |= {f"blocks.{l}.{theirs}": of_block for l, of_block in enumerate(tensor)}
    gpt.load_state_dict({k: torch.from_numpy(x).clone() for k, x in state.items()}, assign=True)
    return gpt.requires_grad_(True)


class Trainer:
    """Steps of PyTorch: the loss of a batch, its gradient, clipping, the optimizers."""

    def __init__(self, loss, params, *optimizers):
        self.loss, self.params, self.optimizers = loss, params, optimizers

    def step(self, tokens, targets):
        loss = self.loss(torch.from_numpy(tokens), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.params, CLIP)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()


def decaying(params):
    """AdamW's groups: matrices decay, vectors do not."""
    return [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]


def training(size, variant, threads, build=build):
    """nanoGPT's step, without its mixed precision."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal("tuned" in variant)
    gpt = build(size.config)
    params = list(gpt.parameters())
    fused = {"fused": True} if "tuned" in variant or variant == "fused" else {}
    optimizer = torch.optim.AdamW(decaying(params), lr=LR, betas=BETAS, eps=EPS, **fused)
    trainer = Trainer(torch.compile(gpt) if variant.startswith("compile") else gpt, params, optimizer)
    trainer.about = f"PyTorch's kernels for {torch.backends.cpu.get_cpu_capability()}"
    return trainer


def llama(size, variant, threads):
    from bench.peers.pytorch_llama import build

    return training(size, variant, threads, build)


class LayerRun:
    def __init__(self, case, variant, threads):
        torch.set_num_threads(threads)
        torch.set_flush_denormal("tuned" in variant)
        self.function = LAYERS[case.layer]
        if variant.startswith("compile"):
            self.function = torch.compile(self.function)
        self.static = case.static
        self.inputs = [None if x is None else torch.from_numpy(x) for x in case.inputs("float32")]
        floats = [x for x in self.inputs if x is not None and x.is_floating_point()]
        self.differentiable = [x.requires_grad_(True) for x in floats]
        self.forward()
        self.dout = torch.from_numpy(output_gradient(self.out.detach().numpy()))

    def forward(self):
        self.out = None
        self.out = self.function(*self.inputs, **self.static)

    def backward(self):
        self.gradients = None
        self.gradients = torch.autograd.grad(self.out, self.differentiable, self.dout)

    def results(self):
        return [self.out.detach().numpy(), *(g.numpy() for g in self.gradients)]


layer = LayerRun
