"""Where text becomes tokens in a checkout of this repository.

    python -m data tinyshakespeare --tokenizer gpt2    the token files of a corpus, and where they lie
    python data/tinyshakespeare.py                     the same, for the corpus of that name

The work is done by gpt2/data, which is installed; this folder is not. Texts of your own may lie here: git
ignores data/*.txt.
"""

from gpt2.data.corpora import Prepared, prepare

__all__ = ["Prepared", "prepare"]
