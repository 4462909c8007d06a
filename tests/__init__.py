"""A real package, so that no `tests` of an installed package is found instead."""
