# pyright: strict
"""The objects that `import opreplay` provides."""
