"""Which profile serves best on a machine, where it is put, and why not the others."""
