"""Derived functions: for the types of a call a program is made, cached and run."""
