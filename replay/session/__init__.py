"""The objects that `import opreplay` gives."""
