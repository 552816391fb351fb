"""The commands, one module each; `gpt2 sample` or `python -m gpt2 sample` starts one by its name."""
