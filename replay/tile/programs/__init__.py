# pyright: strict
"""Programs that ship: examples, tests of the language and what its accuracy is measured with."""
