"""Write programs as source code for other compilers."""
