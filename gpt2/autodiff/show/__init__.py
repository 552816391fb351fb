"""Programs and graphs for people: readable source, pictures, the stages of the compiler."""
