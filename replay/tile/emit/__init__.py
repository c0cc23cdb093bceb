"""Writes programs as source code for other compilers."""
