"""The same model, batch and optimizer in other libraries, each optional.

PyTorch is written as in nanoGPT, JAX and HIPS autograd as plain functions of a dict of tensors. The model is
GPT-2: layernorm before each branch, tanh GELU, the head tied to wte, loss in nats per token.
"""
