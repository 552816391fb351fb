"""All that transformers, peft and tokenizers can write of a GPT-2, of which the other tests take a sample.

python -m tests.long.variants              140 models, 38 adapters, 10,000 texts by each of 36 tokenizers
python -m tests.long.variants -k DoRA      those; options are pytest's
"""

import os
import sys
from pathlib import Path

import pytest

from tests.support.slow import ALL_VARIANTS

FILES = ("weights/test_variants.py", "weights/test_peft_variants.py", "data/test_huggingface.py")

if __name__ == "__main__":
    os.environ[ALL_VARIANTS] = "1"
    tests = Path(__file__).parents[1]
    sys.exit(pytest.main(["-m", "", *sys.argv[1:], *(str(tests / file) for file in FILES)]))
