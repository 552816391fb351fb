"""The same model, batch and optimizer in other libraries. Each is optional; a missing one is said so.

PyTorch in the way of nanoGPT, JAX and HIPS autograd as plain functions of a dict of tensors. The formulas are
GPT-2's: layernorm before each branch, tanh GELU, the head tied to wte, loss in nats per token.
"""
