"""Programs written out as source code for other compilers."""
