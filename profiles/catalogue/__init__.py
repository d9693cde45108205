"""Models and profiles as data, and the files that hold them."""
