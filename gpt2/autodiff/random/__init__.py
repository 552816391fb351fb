"""Random draws as inputs of a program, and derivatives of samples."""
