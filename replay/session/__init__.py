# pyright: strict
"""Objects that `import opreplay` provides."""
