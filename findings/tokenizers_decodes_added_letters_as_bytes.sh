#!/bin/bash
# tokenizers 0.23.3: an added token of letters from Latin-1 does not survive a byte-level decoder.
#
# "é" is added to a byte-level BPE by add_tokens, for example to give the letters of a language tokens of their own.
# It is found in the text and has its id, and one would expect decode to give it back, as it does for "<x>" or "日".
# It gives U+FFFD: the decoder takes any token whose characters all occur in the spelling of bytes for such a
# spelling, added ones too, and "é" spells the byte E9, which is not UTF-8 alone. "Ġx" comes back as " x".
#
# Seen: '<x>' -> '<x>', '日' -> '日', 'é' -> '\ufffd', 'Ġx' -> ' x'.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'END'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
words = Tokenizer(models.BPE(vocab, []))
words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
added = ["<x>", "日", "é", "Ġx"]
words.add_tokens(added)
back = {text: words.decode(words.encode(text).ids) for text in added}
print(", ".join(f"{text!a} -> {result!a}" for text, result in back.items()))
raise SystemExit(0 if back == {"<x>": "<x>", "日": "日", "é": "\ufffd", "Ġx": " x"} else 1)
END
