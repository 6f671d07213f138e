"""Maggy's module paths: maggy.core.exceptions."""
