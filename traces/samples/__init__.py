"""Small real profiles recorded by this project, and the script that records them."""
