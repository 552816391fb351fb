#!/usr/bin/env bash
# peft's OLoRA (init_lora_weights="olora") is to leave a new model's output as it was: it takes a QR factor out of the weight
# and puts it into the adapter. On GPT-2 it does not. The matrices of transformers' GPT-2 are Conv1D, stored as (in, out), and
# OLoRA factors them as if they were (out, in), whatever fan_in_fan_out says; PiSSA, in the same class, transposes them.
# Where in and out are equal (attn.c_proj) the new model silently computes something else; elsewhere (c_attn) its first
# forward fails with a message about shapes, after the base's weights have been changed.
#
# peft 0.21.2, transformers 5.24.0, PyTorch 2.13.0 (CPU), Python 3.11. Prints the largest change of a logit by adding an adapter:
#
#     pissa on attn.c_proj: 3.0e-08
#     olora on attn.c_proj: 6.6e-02
#     olora on attn.c_attn: RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 48x4)
#
# Exits with 1 if OLoRA leaves the output of either as it was.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
tokens = torch.arange(8)[None]


def change(start, module):
    """The largest change of a logit by a new adapter, or the error of the first forward."""
    torch.manual_seed(0)
    sizes = dict(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    with torch.no_grad():
        before = model(tokens).logits
        fields = dict(target_modules=[module], init_lora_weights=start, fan_in_fan_out=True, r=4)
        model = get_peft_model(model, LoraConfig(**fields)).eval()
        try:
            return float((model(tokens).logits - before).abs().max())
        except RuntimeError as error:
            return f"RuntimeError: {error}"


found = {(s, m): change(s, m) for s, m in (("pissa", "attn.c_proj"), ("olora", "attn.c_proj"), ("olora", "attn.c_attn"))}
for (start, module), value in found.items():
    print(f"{start} on {module}: {value if isinstance(value, str) else format(value, '.1e')}")
sys.exit(any(isinstance(v, float) and v < 1e-5 for (start, _), v in found.items() if start == "olora"))
PYTHON
