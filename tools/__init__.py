"""Programs for the people who make Harmonium; the product imports none of them."""
