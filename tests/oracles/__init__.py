"""Plain loops that state the formulas once more and import nothing from the package they judge."""
