"""Users' estimators and properties of ops."""
