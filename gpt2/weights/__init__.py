"""Files of other programs, one module each: huggingface, llmc.

A model's format has three functions: read_config(path), read_views(path, config), which yields the sixteen
tensors as views of the file, and write(path, params, config).
"""
