# pyright: strict
"""opreplay's stand-ins held against independent formulas, or against the libraries that they stand in for."""
