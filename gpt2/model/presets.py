"""Sizes and activations by name. NumPy is not needed to read them."""

# Sizes by name: GPT2Config.preset, --preset of train, --size of bench
PRESETS = {
    # the four that OpenAI released
    "gpt2": dict(n_layer=12, n_head=12, n_embd=768),  # 124 million parameters
    "gpt2-medium": dict(n_layer=24, n_head=16, n_embd=1024),  # 355 million
    "gpt2-large": dict(n_layer=36, n_head=20, n_embd=1280),  # 774 million
    "gpt2-xl": dict(n_layer=48, n_head=25, n_embd=1600),  # 1558 million
    # small ones, for two cores and a few minutes; the second is nanoGPT's recipe for a CPU
    "small-cpu": dict(n_layer=6, n_head=6, n_embd=384, block_size=256),
    "shakespeare-char-cpu": dict(vocab_size=65, n_layer=4, n_head=4, n_embd=128, block_size=64),
    "tiny": dict(vocab_size=256, n_layer=2, n_head=2, n_embd=64, block_size=64),
}
# transformers' names of activations -> gpt2.layers.ALL_LAYERS. gelu_fast has a constant of ten digits
ACTIVATIONS = {
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_accurate", "gelu_fast"), "gelu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu_erf"),
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    **dict.fromkeys(("silu", "swish"), "silu"),
}
RELEASED = tuple(name for name in PRESETS if name.startswith("gpt2"))
