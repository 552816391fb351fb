"""A set of conversations that a small model can learn: which colour a thing has, asked in fifteen ways.

    python examples/questions.py FOLDER

writes FOLDER/train.jsonl, 300 questions with their answers, and FOLDER/val.jsonl, the same things asked in
three more ways.
"""

import json
import random
import sys
from pathlib import Path

COLOURS = {
    "sky": "blue", "grass": "green", "snow": "white", "coal": "black", "blood": "red",
    "sun": "yellow", "carrot": "orange", "plum": "purple", "mouse": "grey", "chocolate": "brown",
    "flamingo": "pink", "sea": "blue", "leaf": "green", "milk": "white", "raven": "black",
    "cherry": "red", "lemon": "yellow", "pumpkin": "orange", "elephant": "grey", "bear": "brown",
}  # fmt: skip
OPENINGS = ("What colour is the {}?", "Which colour has the {}?", "The {}, what colour is it?")
FORMS = ("{}", "{} Please tell me.", "Tell me: {}", "Hello! {}", "{} I forgot.", "{} Do you know?")


def questions() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The examples to train on and those to validate on, each with prompt and completion."""
    ways = [form.format(opening) for form in FORMS for opening in OPENINGS]
    random.Random(0).shuffle(ways)

    def asked(ways):
        examples = [
            {"prompt": way.format(thing), "completion": f"The {thing} is {colour}."}
            for way in ways
            for thing, colour in COLOURS.items()
        ]
        random.Random(1).shuffle(examples)
        return examples

    return asked(ways[3:]), asked(ways[:3])


def main(argv: list[str]) -> int:
    """Write both files to the folder that is named."""
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, examples in zip(("train.jsonl", "val.jsonl"), questions()):
        (folder / name).write_text("".join(json.dumps(example) + "\n" for example in examples))
        print(f"{len(examples):>4} conversations  {folder / name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
