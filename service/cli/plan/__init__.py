"""`harmonium plan`: the roofline of profiles/roofline on the command line."""
