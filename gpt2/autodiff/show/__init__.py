"""Programs and graphs for readers: readable source, pictures, the stages of the compiler."""
