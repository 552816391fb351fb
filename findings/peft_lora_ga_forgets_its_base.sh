#!/usr/bin/env bash
# peft's LoRA-GA (init_lora_weights="lora_ga") starts from an adapter that is not zero, and subtracts it from the base's weights,
# so that a new model computes what it did. Saved by save_pretrained and loaded by PeftModel.from_pretrained beside the same
# base, as any adapter is, the model computes something else, without a warning: the loaded base is left as it is, while the
# adapter is added to it. PiSSA subtracts too, and computes the difference again when it is loaded, so nobody expects this of
# the next one. Only save_pretrained(..., path_initial_model_for_weight_conversion=...) keeps what was trained.
#
# peft 0.21.2, transformers 5.24.0, PyTorch 2.13.0 (CPU), Python 3.11. Prints the largest difference of a logit between a model
# with an adapter and the same one after it was saved and loaded:
#
#     pissa: 0.0e+00
#     lora_ga: 1.8e+00
#
# Exits with 1 if LoRA-GA's comes back, PiSSA's does not, or there is a warning about it.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 peft==0.21.2
HF_HUB_OFFLINE=1 "$place/venv/bin/python" - <<'PYTHON'
import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, LoraGAConfig, PeftModel, get_peft_model
from peft.tuners.lora.loraga import preprocess_loraga
from transformers import GPT2Config, GPT2LMHeadModel

tokens = torch.arange(8)[None]
sizes = dict(vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)


def base():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.2)).eval()


def difference(start, **more):
    """Of the logits after saving and loading, and what loading warned of."""
    model = base()
    fields = dict(target_modules=["c_attn"], init_lora_weights=start, fan_in_fan_out=True, r=2, **more)
    config = LoraConfig(**fields)
    if start == "lora_ga":
        preprocess_loraga(model, config, lambda: model(tokens, labels=tokens).loss.backward())
    model = get_peft_model(model, config).eval()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as seen, torch.no_grad():
        warnings.simplefilter("always")
        model.save_pretrained(folder)
        loaded = PeftModel.from_pretrained(base(), folder).eval()
        found = (loaded(tokens).logits - model(tokens).logits).abs().max().item()
    print(f"{start}: {found:.1e}")
    return found, [str(w.message) for w in seen if "lora" in str(w.message).lower()]


pissa, _ = difference("pissa")
changed, told = difference("lora_ga", lora_ga_config=LoraGAConfig())
sys.exit(0 if pissa < 1e-5 and changed > 0.1 and not told else 1)
PYTHON
