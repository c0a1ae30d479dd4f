"""Figures about launch configurations."""
