"""Text as tokens: corpora, tokenizers, token files, and the batches drawn from them.

corpora.py      the corpora of --data, and `prepare`, which writes their token files
named.py        Tiny Shakespeare, and the source of the standard library
tokenizer.py    gpt2, byte, char and bpe:N, all through tiktoken
tokenizer_json.py, huggingface.py    those of a tokenizer.json, and of the files of transformers
tokens.py       token files, and batches in order or at random
llmc.py         batches in llm.c's order
"""
