"""Files of other programs, one module each: huggingface, huggingface_tokenizer, llmc.

A model's format has three functions: read_config(path), read_into(path, params, config), which fills the
sixteen tensors in place, and write(path, params, config).
"""
