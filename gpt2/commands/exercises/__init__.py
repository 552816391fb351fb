"""gpt2 exercises: the files that it writes are in sheets."""
