#!/bin/bash
# tokenizers 0.23.3: the id that a tokenizer.json gives an added token is not used.
#
# added_tokens in the file says {"id": 500, "content": "<x>"}, beside a vocabulary of 3 tokens. One would expect
# that <x> is token 500, or an error. It is token 3: the library numbers added tokens anew, in the order of the
# list, after the vocabulary, and writes 3 into the file when it saves it. A program that reads the file by itself
# and believes the ids looks up other rows of the embedding than transformers does.
#
# Seen: ids [3], saved as 3.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'END'
import json

from tokenizers import Tokenizer, models

words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}))
fields = json.loads(words.to_str())
flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
fields["added_tokens"] = [{"id": 500, "content": "<x>", "special": True, **flags}]
read = Tokenizer.from_str(json.dumps(fields))
ids = read.encode("<x>").ids
saved = json.loads(read.to_str())["added_tokens"][0]["id"]
print("ids", ids, "saved as", saved)
raise SystemExit(0 if (ids, saved) == ([3], 3) else 1)
END
