"""Plain arrays that a function makes while it is recorded, and writes recorded values into."""
