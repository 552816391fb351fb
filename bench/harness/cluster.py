"""Model of the cost of data-parallel training on many machines, from a few measured or assumed numbers.

One MPI rank a node. A node computes its share of the batch, and the sum of the gradients goes through the
network while earlier blocks are still being computed (gpt2/parallel/mpi.py). docs/parallel.md discusses it.

    compute     3 * forward operations / RATE, a third of it forward
    all-reduce  of b bytes over n nodes: 2 (n-1)/n * b / bandwidth + 2 log2(n) * latency
                (Rabenseifner's algorithm: a reduce-scatter and an all-gather. Thakur et al. 2005)
    overlap     a matrix's all-reduce may start when its block's backward is done, and the network takes one
                after the other; embeddings, gains and biases follow at the end
    update      28 bytes of memory traffic a parameter: p, m, v read and written, g read

What it leaves out: other traffic in the network, stragglers, and the time the processor spends on sending.
"""

import math
from dataclasses import dataclass

from bench.harness import ratios
from gpt2.model import GPT2Config
from gpt2.model.description import Description
from gpt2.train.flops import forward_flops

NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
PRESETS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
B, T = 4, 1024  # per node


@dataclass(frozen=True)
class Hardware:
    """Of a node: rate in FLOP/s, memory and network in bytes/s, latency in seconds."""

    name: str
    rate: float
    memory: float
    network: float
    latency: float


# A node has 64 cores at 60 GFLOP/s each in float32 (a core of the measured machine reaches 87 in a training
# step that has the memory to itself) and eight memory channels. Networks reach 90 % of their nominal rate.
CLUSTERS = (
    Hardware("10 Gb/s Ethernet", 64 * 60e9, 200e9, 0.9 * 1.25e9, 30e-6),
    Hardware("100 Gb/s InfiniBand", 64 * 60e9, 200e9, 0.9 * 12.5e9, 2e-6),
)


def all_reduce(nbytes, n, hardware):
    """Seconds of an all-reduce of nbytes over n nodes."""
    if n == 1:
        return 0.0
    return 2 * (n - 1) / n * nbytes / hardware.network + 2 * math.log2(n) * hardware.latency


def step(config, n, hardware, B=B, T=T):
    """Seconds of one step on n nodes, in parts.

    compute  forward and backward      reduce   all-reduces       update  of the parameters
    step     all of it                 exposed  all-reduces not hidden by the backward
    """
    forward = forward_flops(config, B, T) / hardware.rate
    L, C = config.n_layer, config.n_embd
    head = 2 * B * T * config.vocab_size * C / hardware.rate
    block = (forward - head) / L  # forward of one block; backwards take twice as long as forwards
    # bytes of gradients that are complete only at the end: wte, and the tensors between the matrices
    late = 4 * (config.num_parameters - L * 12 * C * C)
    start, stop = Description(config).ranges["wte"]
    wte = 4 * (stop - start)
    clock = forward + 2 * head
    network = 0.0  # time at which the network is free again
    reduce = 0.0
    for _ in range(L):
        clock += 2 * block
        for matrix in (4, 4, 1, 3):  # fcproj, fc, attproj, qkv, in C^2 entries
            seconds = all_reduce(4 * matrix * C * C, n, hardware)
            network = max(network, clock) + seconds
            reduce += seconds
    last = all_reduce(wte, n, hardware) + 6 * all_reduce((late - wte) / 6, n, hardware)
    compute = clock
    network = max(network, compute) + last
    update = 28 * config.num_parameters / hardware.memory
    return {
        "compute": compute,
        "reduce": reduce + last,
        "exposed": network - compute,
        "update": update,
        "step": network + update,
    }


def enough(config, n, hardware, target=0.9):
    """The fewest tokens per node and step for an efficiency of at least `target`."""
    for tokens in (1 << power for power in range(30)):
        length = min(tokens, T)
        if efficiency(config, n, hardware, tokens // length, length) >= target:
            return tokens
    return None


def efficiency(config, n, hardware, B=B, T=T):
    """Efficiency of weak scaling: one node's step over that of n nodes."""
    return step(config, 1, hardware, B, T)["step"] / step(config, n, hardware, B, T)["step"]


def rows():
    """One dict for each network, model and number of nodes."""
    return [
        {
            "network": hardware.name,
            "model": preset,
            "nodes": n,
            "bytes": 4 * config.num_parameters,
            **step(config, n, hardware),
            "efficiency": efficiency(config, n, hardware),
            "tokens_for_90": enough(config, n, hardware),
        }
        for hardware in CLUSTERS
        for preset in PRESETS
        for config in [GPT2Config.preset(preset)]
        for n in NODES
    ]


def as_text():
    """The tables as text: a row for each model, a column for each number of nodes."""
    text = [
        f"computed: {B} sequences of {T} tokens a node and step, {CLUSTERS[0].rate / 1e12:.1f} TFLOP/s a node"
    ]
    for hardware in CLUSTERS:
        chosen = [r for r in rows() if r["network"] == hardware.name]
        for title, show in (
            ("efficiency", lambda r: f"{r['efficiency']:.0%}"),
            ("ms of all-reduce not hidden", lambda r: f"{1e3 * r['exposed']:.0f}"),
            ("tokens a node for 90 %", lambda r: str(r["tokens_for_90"])),
        ):
            lines = [[preset, *[show(r) for r in chosen if r["model"] == preset]] for preset in PRESETS]
            text.append(f"\n{hardware.name}: {title}")
            text.append(ratios.table(["nodes", *map(str, NODES)], lines))
    return "\n".join(text)
