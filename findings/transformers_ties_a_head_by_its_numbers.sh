#!/usr/bin/env bash
# transformers 5.24.0, torch 2.13.0, safetensors: a GPT-2 whose config.json says tie_word_embeddings: true.
#
# A good guess is that the setting decides: the head is the token embedding, whatever lm_head.weight the file
# holds (as in transformers 4, which tied after loading). Seen instead: the numbers decide.
#
#     lm_head.weight equal to wte        one parameter: training moves both
#     one entry of it off by 1e-7        two parameters, without a warning; config.tie_word_embeddings stays True
#     saved again and loaded             still two, under tie_word_embeddings: true
#     lm_head.weight alone, no wte       the embedding is the head: tied, no key is reported missing
#     lm_head.weight missing,            drawn at random; only loading info and a log line say so
#       tie_word_embeddings: false
#
# So a reader that trusts config.json computes another model, and one rounding (a file converted to bfloat16 and
# back on one side) unties a model for further training.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 safetensors
cat > check.py <<'PY'
import json
import torch, transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


def loaded(change, **settings):
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained("m")
    tensors = load_file("m/model.safetensors")
    assert HEAD not in tensors  # a tied head is left out
    change(tensors)
    save_file(tensors, "m/model.safetensors", {"format": "pt"})
    stated = json.load(open("m/config.json")) | settings
    json.dump(stated, open("m/config.json", "w"))
    return reloaded("m")


def reloaded(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    tied = model.lm_head.weight is model.transformer.wte.weight
    return model, tied, model.config.tie_word_embeddings, sorted(info["missing_keys"])


def equal(tensors):
    tensors[HEAD] = tensors[EMBEDDING].clone()


def other(tensors):
    equal(tensors)
    tensors[HEAD][3, 3] += 1e-7


def alone(tensors):
    tensors[HEAD] = tensors.pop(EMBEDDING)


found = {"equal": loaded(equal)[1:]}
model, *found["other"] = loaded(other)
model.save_pretrained("again")
found["other, saved again"] = reloaded("again")[1:]
found["head alone"] = loaded(alone)[1:]
found["untied, missing"] = loaded(lambda tensors: None, tie_word_embeddings=False)[1:]
expected = {
    "equal": (True, True, []),
    "other": (False, True, []),
    "other, saved again": (False, True, []),
    "head alone": (True, True, []),
    "untied, missing": (False, False, [HEAD]),
}
for name, result in found.items():
    print(f"{name:20s} tied {result[0]!s:6s} setting {result[1]!s:6s} missing {result[2]}")
raise SystemExit({name: tuple(result) for name, result in found.items()} != expected)
PY
venv/bin/python check.py 2> errors.txt || { tail -3 errors.txt; echo "changed"; exit 1; }
