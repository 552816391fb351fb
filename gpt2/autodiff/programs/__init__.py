"""Derived functions: a call's types lead to a program, which is made, kept, found again and run."""
