"""A training step timed here, and what this machine can do.

__main__.py times steps, machine.py products, copies, AdamW, short calls and threads.
"""
