"""The command `gpt2 exercises`; sheets has the exercises."""
