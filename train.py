"""Train a GPT-2.

    python train.py                                   three minutes of Shakespeare
    python train.py --preset shakespeare-char-cpu     nanoGPT's recipe for a CPU, letter by letter
    python train.py --data my.txt --out runs/mine     your own text
    python train.py --resume runs/mine --steps 2000   go on where a run was left
    python train.py --preset finetune --data my.txt   from the released GPT-2; --dry-run says what it takes
    python train.py --preset llm.c                    llm.c's program for the CPU, line by line

Settings come from the defaults, then --preset, then --config FILE.toml, then the flags; the last one wins.
The program itself is gpt2/train, which is installed; this is its door in a checkout.
"""

import sys

from gpt2.train.program import main

if __name__ == "__main__":
    sys.exit(main())
