"""Small faults put into copies of the program, and whether the tests notice."""
