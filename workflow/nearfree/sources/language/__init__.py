"""The normal form of rules, and the two readers of them."""
