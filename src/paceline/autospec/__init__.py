"""Autospec: keeps drafters good while traffic changes. It runs without torch."""
