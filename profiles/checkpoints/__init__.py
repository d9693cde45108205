"""The forms in which a checkpoint lies in a folder, and whether it is whole."""
