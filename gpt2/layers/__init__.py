"""The mathematics of GPT-2: one layer a file, its forward and the backward written by hand beside it.

LAYERS maps a name to a Layer: those of GPT-2 as it was released. ALL_LAYERS also has those that take their
places if a GPT2Config says so. The plain functions are here too, under llm.c's names.
"""

from collections import ChainMap

from gpt2.layers import (
    attention,
    crossentropy,
    encoder,
    gelu,
    gelu_erf,
    layernorm,
    matmul,
    relu,
    residual,
    scaled_attention,
    silu,
)
from gpt2.layers.attention import attention_backward, attention_forward
from gpt2.layers.crossentropy import crossentropy_backward, crossentropy_forward
from gpt2.layers.encoder import encoder_backward, encoder_forward
from gpt2.layers.gelu import gelu_backward, gelu_forward
from gpt2.layers.layer import Layer
from gpt2.layers.layernorm import layernorm_backward, layernorm_forward
from gpt2.layers.matmul import matmul_backward, matmul_backward_naive, matmul_forward, matmul_forward_naive
from gpt2.layers.residual import residual_backward, residual_forward

LAYERS = {
    module.LAYER.name: module.LAYER
    for module in (encoder, layernorm, matmul, attention, gelu, residual, crossentropy)
}
_OTHERS = (
    gelu_erf.LAYER,
    silu.QUICK_GELU,
    relu.LAYER,
    silu.LAYER,
    layernorm.NO_BIAS,
    scaled_attention.LAYER,
)
ALL_LAYERS = ChainMap({layer.name: layer for layer in _OTHERS}, LAYERS)  # it lists LAYERS first

__all__ = [
    "ALL_LAYERS",
    "LAYERS",
    "Layer",
    "attention_backward",
    "attention_forward",
    "crossentropy_backward",
    "crossentropy_forward",
    "encoder_backward",
    "encoder_forward",
    "gelu_backward",
    "gelu_forward",
    "layernorm_backward",
    "layernorm_forward",
    "matmul_backward",
    "matmul_backward_naive",
    "matmul_forward",
    "matmul_forward_naive",
    "residual_backward",
    "residual_forward",
]
