"""Time a training step on this machine, and the machine itself.

__main__.py times steps, machine.py products, copies, AdamW, short calls and threads.
"""
